//! The network of a service cell as the network device of this cell.

use crate::client::ConnectError;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::future::{Future, poll_fn};
use core::pin::pin;
use core::sync::atomic::Ordering;
use core::task::{Poll, Waker};
use core::time::Duration;
use isola_abi::network_service::NetworkHello;
use isola_abi::service::{Reply, decode, encode};
use isola_activities::INFRASTRUCTURE;
use isola_channels::{Channel, ChannelError, LinkAccess, SharedMemory, open};
use isola_ebbs::platform;
use isola_events::{now, sleep, spawn_task_for, timeout};
use isola_iobuf::{Frame, IoBufMut};
use isola_net::neighbours::poll;
use isola_platform::VacatedMemory;
use isola_platform::network::{FramesPending, NetworkPort, NetworkQueue, Offloads, ReceivedFrame};
use spin::Mutex;

/// The memory that a client shares: rings, and 60 buffers of 4 KiB for each direction.
pub const SHARED_PAGES: usize = 128;

/// How long the first connection may take: the service cell may start after its clients.
const FIRST_LIMIT: Duration = Duration::from_secs(30);

/// How long the service may take for an answer before the first frame.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// The pause between two attempts to connect at the start, and before the first attempt to connect again.
const PAUSE: Duration = Duration::from_millis(50);

/// The longest pause between two attempts to connect again: each is a request to the supervisor.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Connects to the network of a service cell, on the cell's first core. The returned device connects again by itself when
/// the service cell was restarted; frames are lost meanwhile.
///
/// # Errors
/// A [`ConnectError`], for a temporary reason after half a minute.
pub async fn connect(cell: &str) -> Result<NetworkPort, ConnectError> {
    let name = alloc::format!("{cell}/{}", platform().descriptor().name);
    let memory = SharedMemory::new(SHARED_PAGES)?;
    let deadline = now() + FIRST_LIMIT;
    let (channel, port) = loop {
        match connect_once(&name, &memory).await {
            Err(error) if error.is_temporary() && now() < deadline => sleep(PAUSE).await,
            result => break result?,
        }
    };
    let NetworkPort { mac, mtu, headroom, queues, .. } = port;
    let driver = queues.into_iter().next().ok_or(ConnectError::Protocol)?;
    let state = Arc::new(Mutex::new(State { driver: Some(driver), is_polled: true, ..State::default() }));
    let connection = Connection { name, memory, state: state.clone(), mac, mtu };
    spawn_task_for(INFRASTRUCTURE, connection.keep(channel)).detach();
    let queues = Vec::from([Box::new(ReconnectingQueue(state)) as Box<dyn NetworkQueue + Send>]);
    Ok(NetworkPort { mac, mtu, headroom, queues, spreading: None })
}

/// Opens a channel, and starts the driver of the device that the service offers.
async fn connect_once(name: &str, memory: &SharedMemory) -> Result<(Channel, NetworkPort), ConnectError> {
    let port = platform().links().ok_or(ChannelError::Unsupported)?;
    let channel = open(name).await?;
    channel.write(&encode(&NetworkHello { version: isola_abi::VERSION })).await?;
    let answer = timeout(ANSWER_LIMIT, channel.read()).await.map_err(|_| ConnectError::Protocol)??;
    let offer = match decode(&answer) {
        Some(Reply::Offer(offer)) => offer,
        Some(Reply::Refused(refusal)) => return Err(ConnectError::Refused(refusal)),
        None => return Err(ConnectError::Protocol),
    };
    let slot = channel.bell().slot();
    let (device, setup) =
        port.open_network_device(slot, offer, memory.words()).map_err(ConnectError::Device)?;
    channel.map(memory, LinkAccess::ReadWrite).await?;
    channel.write(&encode(&setup)).await?;
    Ok((channel, device))
}

/// The connection of a device to its service.
struct Connection {
    name: String,
    memory: SharedMemory,
    state: Arc<Mutex<State>>,
    mac: [u8; 6],
    mtu: u16,
}

impl Connection {
    /// Connects again whenever the link ends, or the service violates the protocol.
    async fn keep(self, first: Channel) {
        let mut channel = first;
        loop {
            channel.on_doorbell(|| {
                poll();
                // The stack polls for itself at high rates.
                false
            });
            // Frames that arrived before caused no poll.
            poll();
            self.until_ended(&channel).await;
            self.state.lock().driver = None;
            drop(channel);
            let mut pause = PAUSE;
            channel = loop {
                sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
                // An operator may end the service cell, or change the cells that it accepts, and start it anew later.
                let Ok((channel, port)) = connect_once(&self.name, &self.memory).await else { continue };
                // The network of another machine's device has other addresses.
                let is_same = (port.mac, port.mtu) == (self.mac, self.mtu);
                if let Some(driver) = port.queues.into_iter().next().filter(|_| is_same) {
                    self.state.lock().attach(driver);
                    break channel;
                }
            };
        }
    }

    /// Waits for the end of the link, or of the driver.
    async fn until_ended(&self, channel: &Channel) {
        let mut closed = pin!(channel.closed());
        poll_fn(|context| {
            let has_failed = self.state.lock().has_failed(context.waker());
            if has_failed || closed.as_mut().poll(context).is_ready() {
                return Poll::Ready(());
            }
            Poll::Pending
        })
        .await;
    }
}

/// The driver of the present link.
#[derive(Default)]
struct State {
    driver: Option<Box<dyn NetworkQueue + Send>>,
    /// Whether the stack polls, so that the driver needs no doorbells.
    is_polled: bool,
    /// Wakes the task that connects.
    connector: Option<Waker>,
}

impl State {
    fn attach(&mut self, mut driver: Box<dyn NetworkQueue + Send>) {
        if !self.is_polled {
            // The poll that follows finds frames that have arrived already.
            _ = driver.enable_interrupts();
        }
        self.driver = Some(driver);
    }

    /// Returns whether the driver is of no use any more, and wakes the task that connects when it will be.
    fn has_failed(&mut self, connector: &Waker) -> bool {
        self.connector = Some(connector.clone());
        self.driver.as_ref().is_some_and(|driver| driver.has_failed())
    }

    /// Wakes the task that connects if the driver has failed.
    fn check(&mut self) {
        if self.driver.as_ref().is_some_and(|driver| driver.has_failed()) {
            self.connector.take().into_iter().for_each(Waker::wake);
        }
    }
}

/// The queue over the drivers of one link after the other. Without a link it receives nothing, and drops frames.
struct ReconnectingQueue(Arc<Mutex<State>>);

impl NetworkQueue for ReconnectingQueue {
    fn vector(&self) -> Option<u8> {
        None
    }

    fn offloads(&self) -> Offloads {
        Offloads::default()
    }

    fn attach(&mut self) {}

    fn receive(&mut self) -> Option<ReceivedFrame> {
        let mut state = self.0.lock();
        let received = state.driver.as_mut()?.receive();
        if received.is_none() {
            state.check();
        }
        received
    }

    fn may_have_received(&self) -> bool {
        self.0.lock().driver.as_ref().is_some_and(|driver| driver.may_have_received())
    }

    fn send(&mut self, frame: Frame) -> Result<(), Frame> {
        let mut state = self.0.lock();
        match state.driver.as_mut().filter(|driver| !driver.has_failed()) {
            Some(driver) => driver.send(frame),
            None => {
                state.check();
                platform().report().network.dropped_frames.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
        }
    }

    fn flush(&mut self) {
        if let Some(driver) = &mut self.0.lock().driver {
            driver.flush();
        }
    }

    fn reclaim(&mut self, recycle: &mut dyn FnMut(IoBufMut)) {
        if let Some(driver) = &mut self.0.lock().driver {
            driver.reclaim(recycle);
        }
    }

    fn enable_interrupts(&mut self) -> FramesPending {
        let mut state = self.0.lock();
        state.is_polled = false;
        state.driver.as_mut().map_or(FramesPending::No, |driver| driver.enable_interrupts())
    }

    fn disable_interrupts(&mut self) {
        let mut state = self.0.lock();
        state.is_polled = true;
        if let Some(driver) = &mut state.driver {
            driver.disable_interrupts();
        }
    }

    fn redirect(&mut self) {}

    fn vacate(&mut self, _: &VacatedMemory) {}

    fn has_failed(&self) -> bool {
        false
    }
}
