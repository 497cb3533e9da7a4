//! A first machine that serves, and machines that join it, for tests: over TCP, or over channels in the tests of
//! `over_channels`.
#![allow(dead_code, reason = "each test uses a part of it")]

use isola_channels::{ChannelStream, open};
use isola_ebbs::EbbId;
use isola_events::sleep;
use isola_hosted::{Loss, switch};
use isola_iobuf::{Chain, IoBuf};
use isola_link_sim::Machine;
use isola_messenger::{
    JoinError, MAX_PAYLOAD, MachineId, Refusal, TransportKind, call, connected_machines, host, id_map, join,
    serve,
};
use isola_net::{FailReason, StreamError, TcpStream};
use isola_test_cells::{SERVER, TestCell, dial_to};
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

pub const PORT: u16 = 9000;

/// Echoes the request.
pub const ECHO: EbbId = EbbId::of_path(module_path!(), "ECHO");

/// Answers with no bytes, after 30 ms.
pub const SLOW: EbbId = EbbId::of_path(module_path!(), "SLOW");

/// Answers with more bytes than permitted.
pub const HUGE: EbbId = EbbId::of_path(module_path!(), "HUGE");

/// An Ebb that no machine serves.
pub const NOT_SERVED: EbbId = EbbId::of_path(module_path!(), "NOT_SERVED");

/// Returns the address of the first machine.
pub fn first() -> SocketAddr {
    (SERVER, PORT).into()
}

pub fn bytes(text: &[u8]) -> Chain {
    Chain::from(IoBuf::copy_from_slice(text))
}

pub async fn echo(call: isola_messenger::Call) -> Result<Chain, Refusal> {
    Ok(call.request)
}

/// Serves as the first machine until the test ends.
pub async fn serve_all() {
    let _listening = host(PORT).unwrap();
    let _map = id_map::serve().unwrap();
    let _echo = serve(ECHO, echo).unwrap();
    let _slow = serve(SLOW, |_| async {
        sleep(Duration::from_millis(30)).await;
        Ok(Chain::new())
    })
    .unwrap();
    let _huge = serve(HUGE, |_| async { Ok(Chain::from(IoBuf::from(vec![7; MAX_PAYLOAD + 1]))) }).unwrap();
    std::future::pending::<()>().await;
}

/// Runs a first machine and one that joins it; the first serves until the other ends.
pub fn pair<F, G>(loss: Loss, one: impl FnOnce() -> F + Send, two: impl FnOnce() -> G + Send)
where
    F: Future<Output = ()> + 'static,
    G: Future<Output = ()> + 'static,
{
    let [a, b] = switch(loss);
    run_cells(machine(), [TestCell::new(1, 1, a, one).until_others_end(), TestCell::new(2, 1, b, two)]);
}

/// Returns the transport of the tests.
pub fn transport() -> TransportKind {
    if module_path!().starts_with("over_channels") { TransportKind::Channel } else { TransportKind::Tcp }
}

/// Returns a simulated machine for cells that have channels, if these are tested.
pub fn machine() -> Option<&'static Machine> {
    (transport() == TransportKind::Channel).then(Machine::new)
}

/// Runs cells like [`isola_test_cells::run_cells`], as cells of a simulated machine if there is one.
pub fn run_cells<'a>(machine: Option<&'static Machine>, cells: impl IntoIterator<Item = TestCell<'a>>) {
    let on_machine = |cell| match machine {
        Some(machine) => TestCell::on_machine(cell, machine),
        None => cell,
    };
    isola_test_cells::run_cells(cells.into_iter().map(on_machine));
}

/// Joins the first machine; tries again until that listens.
pub async fn join_first() -> MachineId {
    loop {
        match join(first()).await {
            Ok(number) => {
                assert_eq!(connected_machines().await, [(MachineId::FIRST, transport())]);
                return number;
            }
            Err(JoinError::Connect(StreamError::Failed(FailReason::Refused))) => {
                sleep(Duration::from_millis(5)).await
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Calls an Ebb on a machine until it answers.
pub async fn first_answer(machine: MachineId, ebb: EbbId) {
    while call(machine, ebb, Chain::new()).await.is_err() {
        sleep(Duration::from_millis(5)).await;
    }
}

/// Completes when the flag is set.
pub async fn is_set(flag: &AtomicBool) {
    while !flag.load(Ordering::Acquire) {
        sleep(Duration::from_millis(2)).await;
    }
}

/// The number of a machine, for other cells of the test.
pub struct SharedMachineId(AtomicU32);

impl SharedMachineId {
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    pub fn set(&self, machine: MachineId) {
        self.0.store(machine.number(), Ordering::Release);
    }

    /// Waits until the number is set.
    pub async fn get(&self) -> MachineId {
        loop {
            if let Some(machine) = MachineId::new(self.0.load(Ordering::Acquire)) {
                return machine;
            }
            sleep(Duration::from_millis(2)).await;
        }
    }
}

/// A connection to the first machine without a protocol.
pub enum Raw {
    Tcp(TcpStream),
    Channel(ChannelStream),
}

impl Raw {
    pub async fn write(&mut self, data: Chain) -> Result<(), ()> {
        let mut data = data;
        match self {
            Self::Tcp(stream) => stream.write(data).await.map_err(|_| ()),
            Self::Channel(stream) => {
                poll_fn(|context| stream.poll_write(context, &mut data)).await.map_err(|_| ())
            }
        }
    }

    /// Reads the next bytes; `None` at the end.
    pub async fn read(&mut self) -> Option<Chain> {
        match self {
            Self::Tcp(stream) => stream.read().await.unwrap_or_default(),
            Self::Channel(stream) => poll_fn(|context| stream.poll_read(context)).await.ok().map(Chain::from),
        }
    }

    /// Ends the connection without regard to data in transmission.
    pub fn abort(self) {
        if let Self::Tcp(stream) = self {
            stream.abort();
        }
    }
}

/// Opens a raw connection to the first machine.
pub async fn dial() -> Raw {
    match transport() {
        TransportKind::Tcp => Raw::Tcp(dial_to(first()).await),
        TransportKind::Channel => loop {
            match open("cell-1/messenger").await {
                Ok(channel) => return Raw::Channel(ChannelStream::new(channel)),
                Err(_) => sleep(Duration::from_millis(5)).await,
            }
        },
    }
}

/// Returns the hello of a machine without a number.
pub fn hello() -> Chain {
    let mut frame = 28_u32.to_be_bytes().to_vec();
    frame.extend([0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
    frame.extend(0_u64.to_be_bytes());
    frame.extend(b"isola\0\0\x02");
    bytes(&frame)
}

/// Joins over a raw connection; returns the assigned number.
pub async fn join_by_hand(raw: &mut Raw) -> MachineId {
    raw.write(hello()).await.unwrap();
    let welcome = raw.read().await.expect("a welcome").to_vec();
    assert_eq!((welcome.len(), welcome[7]), (32, 2));
    MachineId::new(u32::from_be_bytes(welcome[8..12].try_into().unwrap())).unwrap()
}
