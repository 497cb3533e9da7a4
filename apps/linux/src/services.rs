//! Services of other cells for programs, and those of programs for other cells: unix sockets below `/run/isola`.

use crate::root::Root;
use alloc::sync::Arc;
use core::cell::Cell;
use core::time::Duration;
use isola::channels::{self, Channel, ChannelError, LinkRefusal, Listener};
use isola::ebbs::CoreIndex;
use isola::events::{elsewhere, sleep, spawn_task, spawn_task_on, yield_now};
use isola::prelude::*;
use isola_ebbs::platform;
use isola_linux_memory::BoxFuture;
use isola_linux_processes::Errno;
use isola_linux_sockets::{
    CellChannels, ChannelEnded, ListeningSocket, OpeningSocket, PacketChannel, ServicesFs,
};

/// The folder of services.
const FOLDER: &str = "/run/isola";

/// The core to which channels belong.
const CHANNELS: CoreIndex = CoreIndex(0);

/// The time that a peer has to read the last packets of a program that has closed its socket.
const LINGER: Duration = Duration::from_secs(60);

/// The pause after which a channel is opened again that found no slot, and the number of pauses: half a second.
const SLOT_PAUSE: Duration = Duration::from_millis(5);
const SLOT_PAUSES: u32 = 100;

/// The number of packets after which a writer gives way to other events.
const WRITES_IN_A_ROW: u32 = 32;

/// Mounts the folder of services, in a cell with a supervisor.
///
/// # Errors
/// A text for people.
pub async fn start(root: &Root) -> Result<(), String> {
    if platform().links().is_none() {
        return Ok(());
    }
    let files = ServicesFs::new(&platform().descriptor().name, Arc::new(ProgramChannels));
    root.mount_at(FOLDER, files, "services", false).await
}

/// The channels of the cell.
struct ProgramChannels;

impl CellChannels for ProgramChannels {
    fn open(&self, cell: &str, service: &str, socket: OpeningSocket) {
        let name = format!("{cell}/{service}");
        spawn_task_on(CHANNELS, move || async move {
            socket.run(open(&name)).await;
        });
    }

    fn listen(&self, service: &str, socket: ListeningSocket) -> BoxFuture<'static, Result<(), Errno>> {
        let service = service.to_owned();
        Box::pin(elsewhere(CHANNELS, move || async move {
            let listener = channels::listen(&service).map_err(errno)?;
            spawn_task(accept(listener, socket)).detach();
            Ok(())
        }))
    }
}

/// Opens a channel. If this cell has as many as it can have to the other, waits for the end of one for a limited time: those
/// that programs have closed last may still be open.
async fn open(name: &str) -> Result<ProgramChannel, Errno> {
    let mut pauses = SLOT_PAUSES;
    loop {
        match channels::open(name).await {
            Ok(channel) => return Ok(ProgramChannel::new(channel)),
            Err(ChannelError::Refused(LinkRefusal::NoSlot)) if pauses > 0 => {
                pauses -= 1;
                sleep(SLOT_PAUSE).await;
            }
            Err(error) => return Err(errno(error)),
        }
    }
}

/// Passes channels to a socket until it is closed.
async fn accept(listener: Listener, socket: ListeningSocket) {
    while let Some(accepted) = socket.next(listener.accept()).await {
        // If the opener has changed its mind, others have not.
        let Ok(channel) = accepted.map(ProgramChannel::new) else { continue };
        let Some(end) = socket.connect(channel.most_bytes()).await else { break };
        spawn_task(end.carry(channel)).detach();
    }
}

/// A channel of a program.
struct ProgramChannel {
    channel: Channel,
    /// The packets written since the writer last gave way.
    writes: Cell<u32>,
}

impl ProgramChannel {
    fn new(channel: Channel) -> Self {
        Self { channel, writes: Cell::new(0) }
    }
}

impl PacketChannel for ProgramChannel {
    fn most_bytes(&self) -> usize {
        self.channel.most_bytes()
    }

    async fn write(&self, packet: &[u8]) -> Result<(), ChannelEnded> {
        self.writes.set((self.writes.get() + 1) % WRITES_IN_A_ROW);
        if self.writes.get() == 0 {
            yield_now().await;
        }
        self.channel.write(packet).await.map_err(|_| ChannelEnded)
    }

    async fn read(&self, packet: &mut Vec<u8>) -> Result<(), ChannelEnded> {
        self.channel.read_into(packet).await.map_err(|_| ChannelEnded)
    }

    async fn flush(&self) -> Result<(), ChannelEnded> {
        self.channel.flush().await.map_err(|_| ChannelEnded)
    }

    async fn linger(&self) {
        sleep(LINGER).await;
    }
}

/// Returns the error that a program sees.
fn errno(error: ChannelError) -> Errno {
    match error {
        ChannelError::Refused(LinkRefusal::NoSuchCell) => Errno::ENOENT,
        ChannelError::Refused(LinkRefusal::NotAccepted) => Errno::EACCES,
        ChannelError::Refused(LinkRefusal::NoSlot) => Errno::ENOBUFS,
        ChannelError::Refused(LinkRefusal::NoTables) | ChannelError::NoMemory => Errno::ENOMEM,
        ChannelError::NameTaken => Errno::EADDRINUSE,
        ChannelError::Unsupported | ChannelError::WrongCore => Errno::EOPNOTSUPP,
        ChannelError::Closed
        | ChannelError::Refused(_)
        | ChannelError::PeerRing
        | ChannelError::BadName
        | ChannelError::BadSize { .. }
        | ChannelError::TooLong { .. } => Errno::ECONNREFUSED,
    }
}
