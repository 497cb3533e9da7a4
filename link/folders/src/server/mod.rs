//! The server of folders.
//!
//! The policies of the resources `files` and `disk` divide the volume by the activities of the folders. A folder has one
//! client that writes, and any number that read (`isola_volume_service::admission`).
//! A client has one request in execution; others wait in the client's own memory.

mod session;

pub use session::{Folder, MOST_NODES, Malformed, Session};

use crate::link::{ChannelLink, Link};
use crate::{DEVICE_TYPE, MOST_MESSAGE, QUEUES};
use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::future::{Future, poll_fn};
use core::ops::Deref;
use core::pin::pin;
use core::sync::atomic::AtomicU64;
use core::task::Poll;
use isola_abi::service::{DeviceOffer, DriverSetup, QueueSetup, Reply, decode, encode};
use isola_abi::volume::VolumeAccess;
use isola_channels::{Channel, ChannelError, WritableMemory};
use isola_events::{timeout, yield_now};
use isola_virtio_device::queue::{EVENT_INDEX, INDIRECT_DESCRIPTORS, VERSION_1};
use isola_virtio_device::{Chain, DeviceQueue, DriverFault, DriverMemory, QueuePlace};
use isola_volume_service::admission::{STEP_LIMIT, Sharing, Users, serve_clients};

/// The features that the device offers.
pub const FEATURES: u64 = VERSION_1 | EVENT_INDEX | INDIRECT_DESCRIPTORS;

/// The descriptors of a client's queue.
const QUEUE_SIZE: u16 = 64;

/// The length of the tag in the device's configuration.
const TAG_LEN: usize = 36;

/// The requests that are executed before other events run.
const BATCH: usize = 16;

/// A folder of this cell that it serves.
pub struct ServedFolder {
    /// Its name, by which clients open it.
    pub name: String,
    /// The folder.
    pub folder: Folder,
    /// What clients may do with it.
    pub access: VolumeAccess,
}

/// Serves a folder to the cells that this one accepts, on the first core, until the cell ends.
///
/// # Errors
/// A [`ChannelError`], if the folder's name cannot be that of a service, or is taken.
pub fn serve(served: ServedFolder) -> Result<(), ChannelError> {
    let (users, served) = (Users::new(served.access, Sharing::WriterAndReaders), Rc::new(served));
    let name = served.name.clone();
    serve_clients(&name, users, move |_, channel, access| serve_client(served.clone(), channel, access))
}

async fn serve_client(served: Rc<ServedFolder>, channel: Channel, access: VolumeAccess) {
    let name = served.name.as_bytes();
    let Ok(Some(queues)) = timeout(STEP_LIMIT, start(&channel, name)).await else { return };
    let mut session = Session::new(served.folder.clone(), access);
    serve_queues(&ChannelLink::new(channel), queues, &mut session).await;
}

/// Offers the device to a client, and returns its queues once the client has started its driver.
async fn start(channel: &Channel, name: &[u8]) -> Option<Vec<DeviceQueue<ClientMemory>>> {
    let mut configuration = name.to_vec();
    configuration.resize(TAG_LEN, 0);
    // The number of queues for requests.
    configuration.extend_from_slice(&1_u32.to_le_bytes());
    let offer = DeviceOffer {
        device_type: DEVICE_TYPE,
        features: FEATURES,
        queues: vec![QUEUE_SIZE; QUEUES],
        configuration,
    };
    channel.write(&encode(&Reply::Offer(offer))).await.ok()?;
    let setup: DriverSetup = decode(&channel.read().await.ok()?)?;
    let memory = ClientMemory(Rc::new(channel.mapped().await.ok()?.into_writable()?));
    device_queues(&memory, &setup)
}

/// The memory of a client, for both queues.
#[derive(Clone)]
struct ClientMemory(Rc<WritableMemory>);

impl Deref for ClientMemory {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        &self.0
    }
}

/// Returns the queues of a driver with these settings; `None` if they are not as they must be.
pub fn device_queues<M>(memory: &M, setup: &DriverSetup) -> Option<Vec<DeviceQueue<M>>>
where
    M: Deref<Target = [AtomicU64]> + Clone,
{
    if setup.queues.len() != QUEUES || setup.features & !FEATURES != 0 {
        return None;
    }
    let queue = |setting: &QueueSetup| {
        let QueueSetup { size, descriptors, available, used } = *setting;
        let memory = DriverMemory::new(memory.clone(), setup.base);
        let place = QueuePlace { size, descriptors, available, used };
        (size <= QUEUE_SIZE).then(|| DeviceQueue::new(memory, place, setup.features).ok())?
    };
    setup.queues.iter().map(queue).collect()
}

/// Executes the requests of a client, one at a time, until the link ends or the client violates the protocol.
pub async fn serve_queues<M>(link: &impl Link, mut queues: Vec<DeviceQueue<M>>, session: &mut Session)
where
    M: Deref<Target = [AtomicU64]>,
{
    let mut closed = pin!(link.closed());
    let mut in_a_row = 0;
    loop {
        let next = poll_fn(|context| {
            link.wake_by(context.waker());
            if closed.as_mut().poll(context).is_ready() {
                return Poll::Ready(None);
            }
            next_chain(&mut queues).map(Some)
        });
        let Some(Ok((index, chain))) = next.await else { return };
        let Some(queue) = queues.get_mut(index) else { return };
        let Ok(message) = chain.message(queue.memory(), MOST_MESSAGE) else { return };
        let Ok(answer) = session.execute(&message, chain.room()).await else { return };
        let written = answer.map_or(0, |answer| chain.answer(queue.memory(), &answer));
        queue.give_back(chain.head, u32::try_from(written).unwrap_or(u32::MAX));
        if queue.must_notify() {
            link.ring();
        }
        in_a_row += 1;
        if in_a_row == BATCH {
            in_a_row = 0;
            yield_now().await;
        }
    }
}

/// Returns the next chain of any queue, with the queue's index.
fn next_chain<M>(queues: &mut [DeviceQueue<M>]) -> Poll<Result<(usize, Chain), DriverFault>>
where
    M: Deref<Target = [AtomicU64]>,
{
    loop {
        for (index, queue) in queues.iter_mut().enumerate() {
            match queue.take() {
                Ok(Some(chain)) => return Poll::Ready(Ok((index, chain))),
                Ok(None) => {}
                Err(fault) => return Poll::Ready(Err(fault)),
            }
        }
        // Without a short circuit: each queue is armed.
        if !queues.iter_mut().fold(false, |is_one_ready, queue| queue.arm() | is_one_ready) {
            return Poll::Pending;
        }
    }
}
