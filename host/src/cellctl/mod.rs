//! Operations on a cell that take several steps: run it with its ports, stop it, remove it.
//!
//! | module | contents |
//! |---|---|
//! | this | run, start, stop and remove |
//! | [`ports`] | the host's ports that forward to a cell |
//! | [`sessions`] | sessions with programs in a running cell |
//! | `volumes` | the block devices with a cell's volumes |
//!
//! A failed step undoes the steps before it, so a command takes effect completely or not at all.

pub mod ports;
pub mod sessions;
mod volumes;

use crate::client::{Client, ClientError};
use crate::image::CellImage;
use crate::machine::cells::{CellRecord, CleanupPolicy};
use crate::machine::disks::DiskError;
use crate::machine::network::{NetworkError, address};
use crate::machine::network_choice::NetworkChoice;
use crate::machine::qmp::QmpError;
use crate::machine::state::{MachineDir, StateError, StateRoot};
use crate::machine::switch::SwitchError;
use crate::machine::{LockedMachine, MachineError};
use crate::names;
use crate::output::view::is_running;
use crate::publish::{PublishError, PublishSpec};
use crate::volume::VolumeSpec;
use crate::volume::store::VolumeError;
use isola_abi::grid::GridSetup;
use isola_abi::integrity::Requirement;
use isola_abi::management::{
    CellInfo, CellSpec, CorePlacement, LendingSpec, ManagementError, RestartPolicy, Text,
};
use isola_abi::network_service::NetworkService;
use isola_abi::size::ByteSize;
use ports::{check_ports, publish_ports, unpublish_all};
use std::ops::ControlFlow;
use std::thread::sleep;
use std::time::{Duration, Instant};
use thiserror::Error;

/// The polling interval for a cell's state.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// How long a cell with ports to publish may take to get an address by DHCP.
const ADDRESS_LIMIT: Duration = Duration::from_secs(15);

/// How long a command waits for the answer to a stop request before it lets other commands have their turn.
const STOP_TURN: Duration = Duration::from_millis(100);

/// A cell to run.
#[derive(Debug)]
pub struct NewCell {
    /// The image.
    pub image: CellImage,
    /// The digest or signature that the image must have.
    pub requirement: Requirement,
    /// The name; generated if there is none.
    pub name: Option<String>,
    /// The number of cores.
    pub cores: u32,
    /// The placement of the cores.
    pub placement: CorePlacement,
    /// The amount of memory.
    pub memory: ByteSize,
    /// The most memory that the cell can grow to by memory requests.
    pub memory_max: Option<ByteSize>,
    /// Arguments for the application.
    pub arguments: Vec<String>,
    /// The requested network.
    pub network: NetworkChoice,
    /// Whether it serves its network device to other cells.
    pub serves_network: bool,
    /// The restart policy.
    pub restart: RestartPolicy,
    /// The time without progress after which the cell counts as hung, in ms; 0: never.
    pub watchdog_ms: u32,
    /// The rules by which the cell lends and borrows cores.
    pub lending: LendingSpec,
    /// Whether the cell shares the image's text or gets a copy.
    pub text: Text,
    /// The settings of the resource grid with which it starts.
    pub grid: GridSetup,
    /// Ports to publish.
    pub publish: Vec<PublishSpec>,
    /// Volumes to mount.
    pub volumes: Vec<VolumeSpec>,
    /// The cells that may open channels to it; `*` stands for all.
    pub accept: Vec<String>,
    /// The names of the cells with which it exchanges frames over links.
    pub loop_with: Vec<String>,
    /// Whether the cell is removed after its end.
    pub cleanup: CleanupPolicy,
}

/// The reasons why an operation on a cell failed.
#[derive(Debug, Error)]
pub enum CellError {
    /// The machine is not available.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// The supervisor did not answer, or rejected the request.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// No cell has that name.
    #[error("no cell of machine {machine:?} is called {name:?}{}: see `isola ps`", meant.as_ref().map(|m| format!(" (did you mean {m:?}?)")).unwrap_or_default())]
    NoSuchCell {
        /// The name.
        name: String,
        /// The machine.
        machine: String,
        /// A cell with a similar name.
        meant: Option<String>,
    },
    /// The cell runs.
    #[error("cell {0:?} is running: stop it first, or remove it with --force")]
    Running(String),
    /// A port was not published.
    #[error(transparent)]
    Publish(#[from] PublishError),
    /// A TAP network has no port forwarding.
    #[error("ports cannot be published on a TAP network: cells are reached at their own addresses there")]
    NotOnTap,
    /// The cell has no network.
    #[error("cell {0:?} has no network: ports cannot be published for it")]
    NoNetwork(String),
    /// The cell has an address that only its service cell reaches.
    #[error(
        "ports of cell {cell:?} are published by its service cell {service:?}, which translates addresses: run that with          `-p HOST:PORT`, and `PORT:{cell}:PORT` as its last argument"
    )]
    Translated {
        /// The cell.
        cell: String,
        /// The service cell.
        service: String,
    },
    /// The cell's address may change at a restart, when no command runs to follow it.
    #[error(
        "ports of cell {0:?} cannot be published: each time it is started again it may get another address by \
         DHCP; give it an address that stays (--network auto), or no restart policy"
    )]
    AddressMayChange(String),
    /// The cell has no address yet.
    #[error(
        "cell {name:?} has no address after {} s, so its ports cannot be published: see `isola logs {name}`",
        ADDRESS_LIMIT.as_secs()
    )]
    NoAddress {
        /// The cell.
        name: String,
    },
    /// No such port is published.
    #[error("port {port} is not published for cell {cell:?}: see `isola port {cell}`")]
    NotPublished {
        /// The cell.
        cell: String,
        /// The port.
        port: String,
    },
    /// No address is available for the cell.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// The copy of the cell's image is gone.
    #[error(
        "the image that cell {name:?} was made from is not kept here any more, so it cannot be started again: remove it with `isola rm {name}`, and run the image anew"
    )]
    ImageGone {
        /// The cell.
        name: String,
    },
    /// The copy of the cell's image has changed.
    #[error(
        "the image that cell {name:?} was made from was changed where it is kept, so it cannot be started again: {error}; remove it with `isola rm {name}`, and run the image anew"
    )]
    ImageSpoiled {
        /// The cell.
        name: String,
        /// The difference or read error.
        error: String,
    },
    /// A file cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// QEMU did not answer.
    #[error(transparent)]
    Qmp(#[from] QmpError),
    /// The machine's switch did not answer.
    #[error(transparent)]
    Switch(#[from] SwitchError),
    /// A volume does not exist or cannot be used.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// The file of a volume cannot be inserted into a block device.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// All block devices of the machine belong to cells.
    #[error("{}", no_disk(*disks))]
    NoDisk {
        /// The number of the machine's block devices.
        disks: u32,
    },
}

fn no_disk(disks: u32) -> String {
    match disks {
        0 => "the machine has no block devices for volumes: start one with `isola up --disks 4`".to_owned(),
        _ => format!(
            "the machine's {disks} block devices belong to cells: remove a cell that has a volume, or start a machine \
             with more (`isola up --disks NUMBER`)"
        ),
    }
}

/// Returns the cell `name`.
///
/// # Errors
/// [`CellError::NoSuchCell`] with a similar name if there is one, or [`CellError::Client`].
pub fn look_up(locked: &LockedMachine, client: &mut Client, name: &str) -> Result<CellInfo, CellError> {
    match client.inspect(name) {
        Err(ClientError::Refused(ManagementError::NoSuchCell(_))) => {
            let cells = client.list()?;
            let meant = names::nearest(name, cells.iter().map(|cell| cell.spec.name.as_str()));
            Err(CellError::NoSuchCell {
                name: name.to_owned(),
                machine: locked.dir.name.to_string(),
                meant: meant.map(str::to_owned),
            })
        }
        other => Ok(other?),
    }
}

/// Creates and starts a cell. `progress` receives the number of image bytes sent, and can cancel the upload.
///
/// # Errors
/// [`CellError`]; the cell does not exist then.
pub fn run(
    root: &StateRoot,
    locked: &LockedMachine,
    client: &mut Client,
    new: NewCell,
    progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> Result<CellInfo, CellError> {
    let mut cells = client.list()?;
    let swept = sweep(locked, client, &cells)?;
    cells.retain(|cell| !swept.contains(&cell.spec.name));
    let taken = |name: &str| cells.iter().any(|cell| cell.spec.name == name);
    let name = new.name.unwrap_or_else(|| names::generate(taken));
    let (served_volumes, own_volumes) = volumes::divide(new.volumes);
    let (mounts, volumes) = volumes::choose(locked, &own_volumes)?.into_iter().unzip();
    let (network, served) = new.network.resolve(&locked.record.options.uplink, &cells)?;
    let network_service = if new.serves_network { NetworkService::Server } else { served };
    let spec = CellSpec {
        name: name.clone(),
        image_name: new.image.name.clone(),
        image: new.image.digest,
        requirement: Box::new(new.requirement),
        cores: new.cores,
        placement: new.placement,
        memory: new.memory,
        memory_max: new.memory_max,
        arguments: new.arguments,
        network,
        network_service,
        restart: new.restart,
        watchdog_ms: new.watchdog_ms,
        lending: new.lending,
        text: new.text,
        grid: new.grid,
        volumes: mounts,
        served_volumes,
        accept: new.accept,
        loop_with: new.loop_with,
    };
    spec.validate().map_err(ClientError::from)?;
    // Rejects a cell that cannot start before the upload of its image.
    if taken(&name) {
        return Err(ClientError::from(ManagementError::NameTaken(name)).into());
    }
    check_ports(root, locked, &spec, &cells, &new.publish)?;
    client.provide(&new.image, progress)?;
    let cell = client.create(spec)?;
    let record = CellRecord {
        id: cell.id,
        cleanup: new.cleanup,
        publish: new.publish,
        published: Vec::new(),
        volumes,
    };
    let finish = |client: &mut Client| {
        locked.cells().keep_image(&name, &new.image.path)?;
        locked.cells().save(&name, &record)?;
        start_created(root, locked, client, &cell)
    };
    let started = finish(client);
    if started.is_err() {
        // The command reports the first error only.
        let _ = force_stop(client, &name).and_then(|()| remove(locked, client, &cell));
    }
    started
}

/// Starts a cell that has ended, and publishes its ports again. If the supervisor's store has evicted the image,
/// uploads the host's copy; `progress` receives the bytes sent and the total, and can cancel the upload.
///
/// # Errors
/// [`CellError`].
pub fn start(
    root: &StateRoot,
    locked: &LockedMachine,
    client: &mut Client,
    name: &str,
    progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<CellInfo, CellError> {
    let mut cell = look_up(locked, client, name)?;
    if is_running(&cell) {
        return Ok(cell);
    }
    // The cell's address may have changed since; ports that a crash left published must be published again.
    withdraw(locked, &cell)?;
    if has_ended(&cell) {
        let record = locked.cells().load(name, cell.id);
        let publish = record.map(|record| record.publish).unwrap_or_default();
        // Rejects a cell that cannot start before the upload of its image.
        check_ports(root, locked, &cell.spec, &client.list()?, &publish)?;
        if client.images()?.iter().all(|stored| stored.digest != cell.spec.image) {
            let image = recorded_image(locked, &cell)?;
            let len = image.bytes.len() as u64;
            client.upload(&image.bytes, &mut |sent| progress(sent, len))?;
        }
        cell = client.recreate(name)?;
    }
    start_created(root, locked, client, &cell)
}

/// Returns the copy of a cell's image that the host saved when the cell was created.
fn recorded_image(locked: &LockedMachine, cell: &CellInfo) -> Result<CellImage, CellError> {
    let name = &cell.spec.name;
    let own =
        locked.cells().load(name, cell.id).map(|_| locked.cells().image(name)).filter(|path| path.exists());
    let path = own.ok_or_else(|| CellError::ImageGone { name: name.to_owned() })?;
    let spoiled = |error: String| CellError::ImageSpoiled { name: name.to_owned(), error };
    let image = CellImage::read(path).map_err(|error| spoiled(error.to_string()))?;
    if image.digest != cell.spec.image {
        return Err(spoiled(format!("its SHA-256 is {} now", image.digest)));
    }
    Ok(image)
}

fn start_created(
    root: &StateRoot,
    locked: &LockedMachine,
    client: &mut Client,
    cell: &CellInfo,
) -> Result<CellInfo, CellError> {
    let name = &cell.spec.name;
    // Since this command listed the cells, the cell may have got the device of an ended one, and with the device its
    // address: that cell's published ports must not forward here.
    withdraw_ended(locked, &client.list()?)?;
    let publish = locked.cells().load(name, cell.id).map(|record| record.publish).unwrap_or_default();
    let early = cell.spec.static_address().is_some();
    if early {
        publish_ports(root, locked, cell, &publish)?;
    }
    locked.declare_address(cell)?;
    volumes::insert(locked, cell)?;
    let started = client.start(name)?;
    if !early && !publish.is_empty() {
        let cell = wait_for_address(client, name)?;
        publish_ports(root, locked, &cell, &publish)?;
    }
    Ok(started)
}

fn wait_for_address(client: &mut Client, name: &str) -> Result<CellInfo, CellError> {
    let end = Instant::now() + ADDRESS_LIMIT;
    loop {
        let cell = client.inspect(name)?;
        if address(&cell).is_some() {
            return Ok(cell);
        }
        if !is_running(&cell) || Instant::now() >= end {
            return Err(CellError::NoAddress { name: name.to_owned() });
        }
        sleep(POLL_INTERVAL);
    }
}

/// Sends a stop request with the deadline `timeout_ms` and waits for the cell's end. Releases the machine's lock
/// between polls, so that other commands can run.
///
/// Sends no request to a cell that does not run. Withdraws the cell's ports and volumes.
///
/// # Errors
/// [`CellError`].
pub fn stop(
    root: &StateRoot,
    dir: &MachineDir,
    name: &str,
    timeout_ms: u32,
    waiting: &mut dyn FnMut() -> ControlFlow<()>,
) -> Result<CellInfo, CellError> {
    let locked = LockedMachine::take_supervised(root, dir)?;
    let mut client = locked.client()?;
    let mut cell = look_up(&locked, &mut client, name)?;
    let id = cell.id;
    let mut turn = Some((locked, client));
    if (is_running(&cell) || waits_for_restart(&cell))
        && let Some((locked, client)) = &mut turn
    {
        match client.stop(name, timeout_ms, STOP_TURN) {
            Ok(stopped) => cell = stopped.unwrap_or(cell),
            // The cell has just ended by itself.
            Err(ClientError::Refused(ManagementError::WrongState { .. })) => {
                cell = look_up(locked, client, name)?
            }
            Err(error) => return Err(error.into()),
        }
    }
    while is_running(&cell) {
        drop(turn.take());
        if waiting().is_break() {
            return Err(ClientError::Interrupted.into());
        }
        sleep(POLL_INTERVAL);
        let locked = LockedMachine::take_supervised(root, dir)?;
        let mut client = locked.client()?;
        cell = look_up(&locked, &mut client, name)?;
        turn = Some((locked, client));
    }
    if let Some((locked, _)) = &turn
        && cell.id == id
    {
        withdraw(locked, &cell)?;
    }
    Ok(cell)
}

fn force_stop(client: &mut Client, name: &str) -> Result<(), CellError> {
    if is_running(&client.inspect(name)?) {
        client.stop(name, 0, crate::client::ANSWER_TIMEOUT)?;
    }
    Ok(())
}

/// Removes a cell that does not run, with its ports and records.
///
/// # Errors
/// [`CellError`].
pub fn remove(locked: &LockedMachine, client: &mut Client, cell: &CellInfo) -> Result<(), CellError> {
    if is_running(cell) {
        return Err(CellError::Running(cell.spec.name.clone()));
    }
    withdraw(locked, cell)?;
    client.destroy(&cell.spec.name)?;
    locked.cells().remove(&cell.spec.name);
    Ok(())
}

/// Removes the ended cells that were to be removed at their end, and withdraws ports and volumes of other ended cells.
/// Returns the names of the removed cells.
///
/// # Errors
/// [`CellError`].
pub fn sweep(
    locked: &LockedMachine,
    client: &mut Client,
    cells: &[CellInfo],
) -> Result<Vec<String>, CellError> {
    withdraw_ended(locked, cells)?;
    let store = locked.cells();
    let mut swept = Vec::new();
    for cell in cells.iter().filter(|cell| has_ended(cell)) {
        let name = &cell.spec.name;
        if store.load(name, cell.id).is_some_and(|record| record.cleanup == CleanupPolicy::Remove) {
            remove(locked, client, cell)?;
            swept.push(name.clone());
        }
    }
    Ok(swept)
}

/// Withdraws what this host provides for ended cells, as other cells can get their addresses at any time. A cell that
/// awaits its restart keeps its address, its ports and its volumes.
fn withdraw_ended(locked: &LockedMachine, cells: &[CellInfo]) -> Result<(), CellError> {
    let over = |cell: &&CellInfo| has_ended(cell) && !waits_for_restart(cell);
    cells.iter().filter(over).try_for_each(|cell| withdraw(locked, cell))
}

/// Unpublishes the ports of a cell that does not run, and removes its volumes from its block devices.
fn withdraw(locked: &LockedMachine, cell: &CellInfo) -> Result<(), CellError> {
    unpublish_all(locked, cell)?;
    volumes::remove(locked, cell)
}

/// Returns whether a cell has ended and awaits its automatic restart.
pub fn waits_for_restart(cell: &CellInfo) -> bool {
    cell.restarts.next_unix_ns.is_some()
}

/// Returns whether a cell has run and ended.
pub fn has_ended(cell: &CellInfo) -> bool {
    cell.state.has_ended()
}
