//! A volume of a service cell as a block device of this cell.

use crate::reconnecting::{Need, Reconnecting, ReconnectingQueue, ServedControl};
use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::future::{Future, poll_fn};
use core::pin::pin;
use core::task::Poll;
use core::time::Duration;
use isola_abi::service::{DeviceOffer, Hello, Reply, ServedVolume, ServiceRefusal, decode, encode};
use isola_activities::INFRASTRUCTURE;
use isola_channels::{Channel, ChannelError, LinkAccess, LinkRefusal, SharedMemory, open};
use isola_ebbs::platform;
use isola_events::{now, sleep, spawn_task_for, timeout};
use isola_platform::block::{BlockPort, BlockQueue};
use spin::Mutex;

/// The memory that a client shares for a volume: rings, and 120 buffers of 4 KiB or more.
pub const SHARED_PAGES: usize = 128;

/// How long a request may take, the restart of the service cell included.
pub const TIME_LIMIT: Duration = Duration::from_secs(60);

/// How long the first connection may take: the service cell may start after its clients.
const FIRST_LIMIT: Duration = Duration::from_secs(30);

/// How long a client waits for a device that another cell uses: the former incarnation of its own cell may have requests
/// in the disk.
const IN_USE_LIMIT: Duration = Duration::from_secs(5);

/// How long the service may take for an answer before its first request.
pub const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// The pause between two attempts to connect.
pub const PAUSE: Duration = Duration::from_millis(50);

/// The reason why a served volume cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectError {
    /// There is no channel to the service.
    Channel(ChannelError),
    /// The service refuses.
    Refused(ServiceRefusal),
    /// The service does not answer, or not as it must.
    Protocol,
    /// The driver cannot use the device.
    Device(String),
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Channel(error) => error.fmt(f),
            Self::Refused(refusal) => refusal.fmt(f),
            Self::Protocol => f.write_str("the service cell does not answer as its kind of service does"),
            Self::Device(error) => f.write_str(error),
        }
    }
}

impl core::error::Error for ConnectError {}

impl From<ChannelError> for ConnectError {
    fn from(error: ChannelError) -> Self {
        Self::Channel(error)
    }
}

impl ConnectError {
    /// Returns whether a later attempt can succeed: the service cell may be about to start.
    pub fn is_temporary(&self) -> bool {
        match self {
            Self::Channel(ChannelError::Refused(refusal)) => {
                matches!(refusal, LinkRefusal::NoSuchCell | LinkRefusal::NoSlot | LinkRefusal::WrongState)
            }
            // The service does not listen yet, or has ended meanwhile.
            Self::Channel(ChannelError::Closed) | Self::Protocol => true,
            // The former life of this cell may have requests in the device.
            Self::Refused(refusal) => *refusal == ServiceRefusal::InUse,
            Self::Channel(_) | Self::Device(_) => false,
        }
    }
}

/// Opens a channel to a service, on the cell's first core. Returns it with the device that the service offers.
///
/// # Errors
/// A [`ConnectError`], for a temporary reason after half a minute, and after five seconds if another cell uses the device.
pub async fn introduce(volume: &ServedVolume) -> Result<(Channel, DeviceOffer), ConnectError> {
    let deadline = now() + FIRST_LIMIT;
    let mut in_use_until = None;
    loop {
        let error = match introduce_once(volume).await {
            Err(error) if error.is_temporary() => error,
            result => return result,
        };
        let until = match error {
            ConnectError::Refused(_) => *in_use_until.get_or_insert_with(|| now() + IN_USE_LIMIT),
            _ => deadline,
        };
        if now() >= until {
            return Err(error);
        }
        sleep(PAUSE).await;
    }
}

/// As [`introduce`], once.
///
/// # Errors
/// A [`ConnectError`].
pub async fn introduce_once(volume: &ServedVolume) -> Result<(Channel, DeviceOffer), ConnectError> {
    let channel = open(&volume.link_name()).await?;
    let hello = Hello { version: isola_abi::VERSION, access: volume.access };
    channel.write(&encode(&hello)).await?;
    let answer = timeout(ANSWER_LIMIT, channel.read()).await.map_err(|_| ConnectError::Protocol)??;
    match decode(&answer) {
        Some(Reply::Offer(offer)) => Ok((channel, offer)),
        Some(Reply::Refused(refusal)) => Err(ConnectError::Refused(refusal)),
        None => Err(ConnectError::Protocol),
    }
}

/// Connects to a served volume, whose service has offered its device on `channel`. The returned device connects again by
/// itself when the service cell was restarted.
///
/// # Errors
/// A [`ConnectError`], for a temporary reason after half a minute.
pub async fn connect(
    volume: &ServedVolume,
    channel: Channel,
    offer: DeviceOffer,
) -> Result<BlockPort, ConnectError> {
    let memory = SharedMemory::new(SHARED_PAGES)?;
    let deadline = now() + FIRST_LIMIT;
    let mut introduced = Some((channel, offer));
    let (channel, port) = loop {
        let attempt = match introduced.take() {
            Some((channel, offer)) => start_driver(channel, offer, &memory).await,
            None => connect_once(volume, &memory).await,
        };
        match attempt {
            Err(error) if error.is_temporary() && now() < deadline => sleep(PAUSE).await,
            result => break result?,
        }
    };
    let BlockPort { limits, mut control, queues } = port;
    let sectors = control.capacity();
    let driver = queues.into_iter().next().ok_or(ConnectError::Protocol)?;
    let state = Reconnecting::new(limits, driver);
    let connection = Connection { volume: volume.clone(), memory, state: state.clone(), sectors };
    spawn_task_for(INFRASTRUCTURE, connection.keep(channel)).detach();
    let queue = Box::new(ReconnectingQueue(state)) as Box<dyn BlockQueue + Send>;
    Ok(BlockPort { limits, control: Box::new(ServedControl { sectors }), queues: Vec::from([queue]) })
}

/// Opens a channel, and starts the driver of the device that the service offers.
async fn connect_once(
    volume: &ServedVolume,
    memory: &SharedMemory,
) -> Result<(Channel, BlockPort), ConnectError> {
    let (channel, offer) = introduce_once(volume).await?;
    start_driver(channel, offer, memory).await
}

/// Starts the driver of the device that the service has offered on `channel`.
async fn start_driver(
    channel: Channel,
    offer: DeviceOffer,
    memory: &SharedMemory,
) -> Result<(Channel, BlockPort), ConnectError> {
    let port = platform().links().ok_or(ChannelError::Unsupported)?;
    let slot = channel.bell().slot();
    let (device, setup) =
        port.open_block_device(slot, offer, memory.words()).map_err(ConnectError::Device)?;
    channel.map(memory, LinkAccess::ReadWrite).await?;
    channel.write(&encode(&setup)).await?;
    Ok((channel, device))
}

/// The connection of a device to its service.
struct Connection {
    volume: ServedVolume,
    memory: SharedMemory,
    state: Arc<Mutex<Reconnecting>>,
    sectors: u64,
}

impl Connection {
    /// Connects again whenever the link ends, as long as the device is in use.
    async fn keep(self, first: Channel) {
        let mut channel = first;
        loop {
            self.ring_for(&channel);
            if self.until_needed(&channel).await == Need::End {
                self.state.lock().detach();
                return;
            }
            self.state.lock().detach();
            drop(channel);
            channel = loop {
                sleep(PAUSE).await;
                if self.need().await == Need::End {
                    return;
                }
                match connect_once(&self.volume, &self.memory).await {
                    Ok((channel, BlockPort { limits, mut control, queues })) => {
                        let driver = queues.into_iter().next();
                        let is_same = control.capacity() == self.sectors;
                        let mut state = self.state.lock();
                        let driver = driver.filter(|_| is_same);
                        if driver.is_none_or(|driver| !state.attach(&limits, driver)) {
                            return state.fail();
                        }
                        drop(state);
                        break channel;
                    }
                    Err(error) if error.is_temporary() => {}
                    Err(ConnectError::Channel(_)) => {}
                    // The service is another one now.
                    Err(_) => return self.state.lock().fail(),
                }
            };
        }
    }

    /// Wakes the task that takes completions at each doorbell of the service.
    fn ring_for(&self, channel: &Channel) {
        let state = Arc::downgrade(&self.state);
        channel.on_doorbell(move || {
            state.upgrade().inspect(|state| state.lock().wake_taker());
            // The number of completions is not known here, so the channel does not keep the core polling.
            false
        });
        // Requests that were completed before woke no task.
        self.state.lock().wake_taker();
    }

    async fn need(&self) -> Need {
        poll_fn(|context| Poll::Ready(self.state.lock().need(context.waker()))).await
    }

    /// Waits for the end of the link, or of the device's use.
    async fn until_needed(&self, channel: &Channel) -> Need {
        let mut closed = pin!(channel.closed());
        poll_fn(|context| {
            let need = self.state.lock().need(context.waker());
            let is_closed = closed.as_mut().poll(context).is_ready();
            match need {
                Need::Nothing if is_closed => Poll::Ready(Need::Connection),
                Need::Nothing => Poll::Pending,
                need => Poll::Ready(need),
            }
        })
        .await
    }
}
