//! Cells of this process: a server and its client ([`run_server_and_client`]), or any number ([`run_cells`]).

use crate::address;
use isola_abi::descriptor::NetworkAddress;
use isola_abi::network_service::NetworkService;
use isola_ebbs::{EbbInUse, current_core};
use isola_events::{exit, run, sleep, spawn_task, timeout};
use isola_hosted::{Hosted, Loss, Settings, link};
use isola_link_sim::{Machine, Port};
use isola_net::start;
use isola_platform::CoreIndex;
use isola_platform::network::NetworkPort;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// The time limit of a cell.
const LIMIT: Duration = Duration::from_secs(60);

/// The exit code of a cell whose core has panicked.
const PANICKED: i32 = 101;

type Manager<'a> = Box<dyn FnOnce(&'static Hosted) + Send + 'a>;
type Body<'a> = Box<dyn FnOnce() -> Pin<Box<dyn Future<Output = ()>>> + Send + 'a>;

/// A cell of a test.
pub struct TestCell<'a> {
    number: u8,
    address: Option<NetworkAddress>,
    cores: usize,
    port: NetworkPort,
    body: Body<'a>,
    components: fn() -> Result<(), EbbInUse>,
    /// The function that adds and removes the cell's cores while it runs.
    manager: Option<Manager<'a>>,
    /// The cell's links to other cells of its machine.
    links: Option<&'static Port>,
    network_service: NetworkService,
    end: End,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// When the bodies of all cells of this kind, and all managers, have ended.
    OfItself,
    /// With the other cells, even if its body has not ended.
    WithTheOthers,
}

/// The progress of all cells.
#[derive(Default)]
struct Progress {
    /// The number of cells whose bodies must still end, plus running managers.
    busy: AtomicUsize,
    /// A cell has failed: the others end as well.
    failed: AtomicBool,
}

impl Progress {
    fn is_over(&self) -> bool {
        self.busy.load(Ordering::Acquire) == 0 || self.failed.load(Ordering::Acquire)
    }
}

impl<'a> TestCell<'a> {
    /// Returns the cell with that number and that many cores, whose first core runs `body` as a task.
    pub fn new<F: Future<Output = ()> + 'static>(
        number: u8,
        cores: usize,
        port: NetworkPort,
        body: impl FnOnce() -> F + Send + 'a,
    ) -> Self {
        let body: Body<'a> = Box::new(|| Box::pin(body()));
        let address = Some(NetworkAddress { ip: address(number), prefix_len: 24, gateway: None });
        Self {
            number,
            cores,
            address,
            port,
            body,
            components: || Ok(()),
            manager: None,
            links: None,
            network_service: NetworkService::None,
            end: End::OfItself,
        }
    }

    /// Sets a function that replaces components of the library OS by the cell's own.
    pub fn with_components(self, components: fn() -> Result<(), EbbInUse>) -> Self {
        Self { components, ..self }
    }

    /// Runs `manager` on a thread of its own, which adds and removes cores of the cell as a supervisor would. The cell
    /// does not end before it.
    pub fn managed_by(self, manager: impl FnOnce(&'static Hosted) + Send + 'a) -> Self {
        Self { manager: Some(Box::new(manager)), ..self }
    }

    /// Makes the cell one of a simulated machine, whose cells open channels to each other. Its name is `cell-` with its
    /// number.
    pub fn on_machine(self, machine: &'static Machine) -> Self {
        Self { links: Some(machine.add(&format!("cell-{}", self.number))), ..self }
    }

    /// Makes the cell one that serves its network to the others of its machine.
    pub fn serving_network(self) -> Self {
        Self { network_service: NetworkService::Server, ..self }
    }

    /// Leaves the cell without an address at its creation.
    pub fn without_address(self) -> Self {
        Self { address: None, ..self }
    }

    /// Makes the cell serve until the other cells have ended.
    pub fn until_others_end(self) -> Self {
        Self { end: End::WithTheOthers, ..self }
    }

    /// Runs the cell; returns its exit code.
    fn run(self, progress: &Arc<Progress>) -> i32 {
        let (cores, core_slot_count) = (self.cores, self.cores);
        let mut settings = Settings {
            cores,
            core_slot_count,
            address: self.address,
            network_service: self.network_service,
            ..Settings::default()
        };
        if let Some(port) = self.links {
            settings.name = port.name().into();
            settings.links = Some(port);
        }
        let manager = Mutex::new(self.manager);
        let body = Mutex::new(Some(self.body));
        let begin = || {
            (self.components)().expect("nothing is in use yet");
            start().expect("the cell has a device and an address");
            let body = body.lock().unwrap_or_else(PoisonError::into_inner).take();
            let body = body.expect("a cell has one first core")();
            let progress = progress.clone();
            spawn_task(async move {
                let outcome = if self.end == End::OfItself {
                    let outcome = timeout(LIMIT, body).await;
                    progress.busy.fetch_sub(1, Ordering::AcqRel);
                    outcome
                } else {
                    spawn_task(body).detach();
                    Ok(())
                };
                while !progress.is_over() {
                    sleep(Duration::from_millis(2)).await;
                }
                exit(i32::from(outcome.is_err()));
            })
            .detach();
        };
        let codes = thread::scope(|scope| {
            let manage = |cell| {
                let manager = manager.lock().unwrap_or_else(PoisonError::into_inner).take();
                let Some(manager) = manager else { return };
                scope.spawn(move || {
                    if catch_unwind(AssertUnwindSafe(|| manager(cell))).is_err() {
                        progress.failed.store(true, Ordering::Release);
                    }
                    progress.busy.fetch_sub(1, Ordering::AcqRel);
                });
            };
            isola_hosted::run(settings, vec![self.port], |cell| {
                let work = || {
                    if current_core() == CoreIndex(0) {
                        self.links.into_iter().for_each(|port| port.attach(cell));
                        begin();
                        manage(cell);
                    }
                    run()
                };
                // Ends the other cores, too.
                catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
                    exit(PANICKED);
                    PANICKED
                })
            })
        });
        self.links.into_iter().for_each(Port::end);
        codes.into_iter().find(|code| *code != 0).unwrap_or_default()
    }
}

/// Runs cells concurrently until the bodies of all those that end by themselves have ended; each serves the others
/// until then.
///
/// # Panics
/// If one of them panics or exceeds the time limit.
pub fn run_cells<'a>(cells: impl IntoIterator<Item = TestCell<'a>>) {
    let cells: Vec<_> = cells.into_iter().collect();
    let progress = Arc::new(Progress::default());
    let busy = cells.iter().filter(|cell| cell.end == End::OfItself).count();
    let managers = cells.iter().filter(|cell| cell.manager.is_some()).count();
    progress.busy.store(busy + managers, Ordering::Release);
    thread::scope(|scope| {
        for cell in cells {
            let progress = &progress;
            scope.spawn(move || {
                let number = cell.number;
                let code = cell.run(progress);
                if code != 0 {
                    progress.failed.store(true, Ordering::Release);
                }
                assert_ne!(code, PANICKED, "cell {number} has panicked");
                assert_eq!(code, 0, "cell {number} takes too long");
            });
        }
    });
    assert!(!progress.failed.load(Ordering::Acquire), "a cell or its manager has failed");
}

/// Runs a server cell of `cores` cores and a client cell of one core. The first core of each runs its function as a
/// task; both cells end with the client's task.
///
/// # Panics
/// If either of them panics, or the client does not end.
pub fn run_server_and_client<S, C>(
    cores: usize,
    loss: Loss,
    server: impl FnOnce() -> S + Send,
    client: impl FnOnce() -> C + Send,
) where
    S: Future<Output = ()> + 'static,
    C: Future<Output = ()> + 'static,
{
    run_server_and_client_over(link(loss), cores, server, client);
}

/// Runs the cells as [`run_server_and_client`] does, over these network devices: the server's and the client's.
///
/// # Panics
/// As [`run_server_and_client`].
pub fn run_server_and_client_over<S, C>(
    (server_port, client_port): (NetworkPort, NetworkPort),
    cores: usize,
    server: impl FnOnce() -> S + Send,
    client: impl FnOnce() -> C + Send,
) where
    S: Future<Output = ()> + 'static,
    C: Future<Output = ()> + 'static,
{
    let server = TestCell::new(1, cores, server_port, server).until_others_end();
    run_cells([server, TestCell::new(2, 1, client_port, client)]);
}
