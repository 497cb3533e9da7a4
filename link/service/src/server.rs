//! The server of volumes.
//!
//! The policy of the disk orders requests by the activity of their volume. A volume has one client that writes, or any number
//! that read ([`crate::admission`]). A client's requests in execution are bounded ([`MOST_IN_FLIGHT`]); others wait in the client's own memory.

use crate::admission::{STEP_LIMIT, Sharing, Users, serve_clients};
use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::future::{Future, poll_fn};
use core::pin::pin;
use core::task::{Poll, Waker};
use isola_abi::service::{DeviceOffer, DriverSetup, Reply, decode, encode};
use isola_abi::volume::VolumeAccess;
use isola_block::{BlockDevice, BlockError};
use isola_channels::{Bell, Channel, ChannelError, WritableMemory};
use isola_events::timeout;
use isola_iobuf::IoBufMut;
use isola_platform::block::WriteCache;
use isola_virtio_device::block::{
    BlockOperation, BlockRequest, BlockSettings, BlockStatus, DEVICE_TYPE, SECTOR_LEN,
};
use isola_virtio_device::{DeviceQueue, DriverFault, DriverMemory, QueuePlace};

/// The most requests of a client in execution, each of at most [`MOST_BYTES`]: 1 MiB a client.
pub const MOST_IN_FLIGHT: usize = 16;

/// The most requests in the disk while there is a policy of its resource. With [`MOST_IN_FLIGHT`] requests of each client,
/// those of a client with half of the disk wait for the policy's decision, even if each client has few. The disk's own
/// order divides requests that it has already.
pub const MOST_IN_DISK: u16 = 8;

/// The most bytes of a request.
pub const MOST_BYTES: usize = 64 << 10;

/// The descriptors of a client's queue.
const QUEUE_SIZE: u16 = 64;

/// The most segments of a request's data.
const SEGMENTS: u32 = 16;

/// The requests that are begun before other events run.
const BATCH: usize = 16;

/// The length of the buffers that are kept for a client's later requests, as many as are in execution at a time.
const KEPT_LEN: usize = 4096;

/// A volume of this cell that it serves: a part of a block device.
pub struct ServedDevice {
    /// Its name, by which clients open it.
    pub name: String,
    /// The device.
    pub device: BlockDevice,
    /// The first sector.
    pub first: u64,
    /// The number of sectors.
    pub sectors: u64,
    /// Whether clients may write to it.
    pub access: VolumeAccess,
}

impl ServedDevice {
    fn settings(&self, access: VolumeAccess) -> BlockSettings {
        let limits = self.device.limits();
        BlockSettings {
            sectors: self.sectors,
            block_len: limits.block_len,
            physical_block_len: limits.physical_block_len,
            most_bytes: MOST_BYTES,
            is_read_only: access == VolumeAccess::ReadOnly,
            has_cache: limits.cache == WriteCache::Volatile,
        }
    }
}

/// Serves a volume to the cells that this one accepts, on the first core, until the cell ends.
///
/// # Errors
/// A [`ChannelError`], if the volume's name cannot be that of a service, or is taken.
pub fn serve(served: ServedDevice) -> Result<(), ChannelError> {
    let (users, served) = (Users::new(served.access, Sharing::WriterOrReaders), Rc::new(served));
    let name = served.name.clone();
    // The task of a client runs for the volume's activity, and so do its requests.
    serve_clients(&name, users, move |_, channel, access| serve_client(served.clone(), channel, access))
}

async fn serve_client(served: Rc<ServedDevice>, channel: Channel, access: VolumeAccess) {
    let settings = served.settings(access);
    let Some(queue) = start(&channel, &settings).await else { return };
    let client = Rc::new(Client {
        served,
        settings,
        queue: RefCell::new(queue),
        bell: channel.bell(),
        in_flight: Cell::new(0),
        buffers: RefCell::default(),
        server: Cell::new(None),
    });
    let woken = Rc::downgrade(&client);
    channel.on_doorbell(move || woken.upgrade().is_some_and(|client| client.wake_for_chains()));
    client.serve(&channel).await;
    // The disk may still write for this client: the next one begins afterwards.
    client.finished().await;
}

/// Offers the device to a client, and returns its queue once the client has started its driver.
async fn start(channel: &Channel, settings: &BlockSettings) -> Option<DeviceQueue<WritableMemory>> {
    let features = settings.features();
    let offer = DeviceOffer {
        device_type: DEVICE_TYPE,
        features,
        queues: Vec::from([QUEUE_SIZE]),
        configuration: settings.configuration(SEGMENTS),
    };
    let steps = async {
        channel.write(&encode(&Reply::Offer(offer))).await.ok()?;
        let setup: DriverSetup = decode(&channel.read().await.ok()?)?;
        let memory = channel.mapped().await.ok()?.into_writable()?;
        Some((setup, memory))
    };
    let (setup, memory) = timeout(STEP_LIMIT, steps).await.ok()??;
    let place = setup.queues.first().filter(|_| setup.queues.len() == 1)?;
    let place = QueuePlace {
        size: place.size,
        descriptors: place.descriptors,
        available: place.available,
        used: place.used,
    };
    let is_offered = setup.features & !features == 0 && place.size <= QUEUE_SIZE;
    let memory = is_offered.then(|| DriverMemory::new(memory, setup.base))?;
    DeviceQueue::new(memory, place, setup.features).ok()
}

/// A client of a volume.
struct Client {
    served: Rc<ServedDevice>,
    settings: BlockSettings,
    queue: RefCell<DeviceQueue<WritableMemory>>,
    bell: Bell,
    in_flight: Cell<usize>,
    /// Buffers of earlier reads of this client, of [`KEPT_LEN`] bytes each, in the lists that requests take.
    buffers: RefCell<Vec<Vec<IoBufMut>>>,
    /// Wakes the task of the client.
    server: Cell<Option<Waker>>,
}

impl Client {
    /// Wakes the client's task if requests wait, and returns whether some do.
    fn wake_for_chains(&self) -> bool {
        let has_work = self.queue.borrow().has_available();
        if has_work {
            self.wake();
        }
        has_work
    }

    fn wake(&self) {
        self.server.take().into_iter().for_each(Waker::wake);
    }

    /// Notifies the driver of the requests that were returned since the last call, if it wants that.
    fn notify(&self) {
        if self.queue.borrow_mut().must_notify() {
            self.bell.ring();
        }
    }

    /// Begins the client's requests as they come, and notifies the driver of those that end, until the link ends or the driver
    /// violates the protocol.
    async fn serve(self: &Rc<Self>, channel: &Channel) {
        let mut closed = pin!(channel.closed());
        poll_fn(|context| {
            self.server.set(Some(context.waker().clone()));
            self.notify();
            if closed.as_mut().poll(context).is_ready() {
                return Poll::Ready(());
            }
            for _ in 0..BATCH {
                if self.in_flight.get() >= MOST_IN_FLIGHT {
                    // The end of a request wakes the task.
                    return Poll::Pending;
                }
                match self.next() {
                    Ok(Some(request)) => self.begin(request),
                    Ok(None) if self.queue.borrow_mut().arm() => {}
                    Ok(None) => return Poll::Pending,
                    Err(_) => return Poll::Ready(()),
                }
            }
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }

    fn next(&self) -> Result<Option<BlockRequest>, DriverFault> {
        let mut queue = self.queue.borrow_mut();
        let Some(chain) = queue.take()? else { return Ok(None) };
        let parsed = BlockRequest::parse(queue.memory(), chain, &self.settings);
        parsed.map(Some).map_err(|fault| queue.break_off(fault))
    }

    fn begin(self: &Rc<Self>, request: BlockRequest) {
        self.in_flight.set(self.in_flight.get() + 1);
        let ServedDevice { device, first, .. } = &*self.served;
        // Checked against the number of sectors, so that the sums are within the device.
        let submitted = match request.operation {
            BlockOperation::Refused(status) => return self.finish(&request, status),
            BlockOperation::Read(sector) => device.read(first + sector, self.take_buffers(request.data_len)),
            BlockOperation::Write(sector) => {
                let mut data = new_buffer(request.data_len);
                request.copy_in(self.queue.borrow().memory(), 0, data.data_mut());
                device.write(first + sector, data.freeze().into())
            }
            BlockOperation::Flush => device.flush(),
        };
        let client = self.clone();
        submitted.on_completion(move |result| client.complete(&request, result));
    }

    /// Completes a request for which the disk has a result, in the event of the disk.
    fn complete(&self, request: &BlockRequest, result: Result<Vec<IoBufMut>, BlockError>) {
        let Ok(buffers) = result else { return self.finish(request, BlockStatus::IoError) };
        let mut from = 0;
        for buffer in &buffers {
            request.copy_out(self.queue.borrow().memory(), from, buffer);
            from += buffer.len();
        }
        self.keep_buffers(buffers);
        self.finish(request, BlockStatus::Ok);
    }

    /// Returns a buffer of that length for a read, which fills it.
    fn take_buffers(&self, len: usize) -> Vec<IoBufMut> {
        let kept = if len == KEPT_LEN { self.buffers.borrow_mut().pop() } else { None };
        kept.unwrap_or_else(|| Vec::from([new_buffer(len)]))
    }

    fn keep_buffers(&self, buffers: Vec<IoBufMut>) {
        if let [buffer] = &buffers[..]
            && buffer.len() == KEPT_LEN
        {
            self.buffers.borrow_mut().push(buffers);
        }
    }

    fn finish(&self, request: &BlockRequest, status: BlockStatus) {
        request.finish(&mut self.queue.borrow_mut(), status);
        let in_flight = self.in_flight.get().saturating_sub(1);
        self.in_flight.set(in_flight);
        if in_flight == 0 {
            // The driver waits for no other request.
            self.notify();
        }
        // The task notifies the driver of all requests that the disk has completed together, and takes further ones.
        self.wake();
    }

    /// Waits until no request is in execution.
    async fn finished(&self) {
        poll_fn(|context| {
            self.server.set(Some(context.waker().clone()));
            if self.in_flight.get() == 0 { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

fn new_buffer(len: usize) -> IoBufMut {
    let mut buffer = IoBufMut::with_room(0, len);
    buffer.extend();
    buffer
}

const _: () = assert!(MOST_BYTES.is_multiple_of(SECTOR_LEN));
