//! virtio network devices as the stack's queues: their start. `queue` has the queues, `recycled` their received buffers,
//! `sizes` the numbers of both.

mod queue;
mod recycled;
mod sizes;

use crate::state::AUTHORITY;
use crate::{console, vectors};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::RangeInclusive;
use isola_abi::descriptor::Descriptor;
use isola_abi::network_service::NetworkService;
use isola_drivers::net::{
    FeatureSupport, HEADER_LEN, Merging, NetDevice, NetInterrupts, NetOptions, Reception,
};
use isola_drivers::transport::{self, Transport};
use isola_machine::apic;
use isola_machine::device::DeviceRegisters;
use isola_machine::dma::DmaRegion;
use isola_platform::network::{
    FlowSpreading, NetworkPort, NetworkQueue, SPREADING_KEY_LEN, SPREADING_PARTS, SpreadingRefused,
};
use queue::BareQueue;
pub(crate) use queue::receive_buffer_bytes;
use sizes::{BUFFER_LEN, longest_mtu, merged_len, pairs_with_vectors, queue_size, wanted_pairs};
use spin::Mutex;

/// Initialises the cell's network devices.
pub(crate) fn open(descriptor: &Descriptor, devices: Vec<DeviceRegisters>) -> Vec<NetworkPort> {
    let mut vectors = vectors::of_network(descriptor);
    let later = (0..devices.len()).rev();
    let opened = devices
        .into_iter()
        .zip(later)
        .map(|(windows, later)| open_device(descriptor, &mut vectors, later, windows));
    opened.flatten().collect()
}

/// Initialises a device, which `later` others follow. Its queues take their vectors from the remaining ones.
fn open_device(
    descriptor: &Descriptor,
    vectors: &mut RangeInclusive<u8>,
    later: usize,
    windows: DeviceRegisters,
) -> Option<NetworkPort> {
    let cores = descriptor.cores.len() as u8;
    let wanted = wanted_pairs(cores, descriptor.core_slot_count as u8);
    let Some(pairs) = pairs_with_vectors(vectors.len(), later, cores, wanted) else {
        return print_error(&"there are no interrupt vectors left for its queues");
    };
    if pairs < wanted {
        print_error::<()>(&format_args!(
            "interrupt vectors suffice for {pairs} of {wanted} queue pairs: {} cores that join will have none",
            wanted - pairs
        ));
    }
    let first_vector = *vectors.start();
    *vectors = first_vector + pairs..=*vectors.end();
    let here = descriptor.cores.first()?.apic;
    let messages: Option<Vec<_>> =
        (0..pairs).map(|queue| apic::message(AUTHORITY, here, first_vector + queue)).collect();
    let (interrupts, vector) = match (&windows, &messages) {
        (DeviceRegisters::Mmio { vector, .. }, _) => (NetInterrupts::Line, *vector),
        (_, Some(messages)) => {
            (NetInterrupts::Messages { pairs: messages, configuration: None }, first_vector)
        }
        (_, None) => return print_error(&"the first core's id is beyond what device interrupts can name"),
    };
    let transport = match transport::open(windows) {
        Ok(transport) => transport,
        Err(error) => return print_error(&error),
    };
    let is_shared = descriptor.network_service == NetworkService::Server;
    match start(transport, (cores, pairs), interrupts, vector, is_shared) {
        Ok(port) => Some(port),
        Err(error) => print_error(&error),
    }
}

fn print_error<T>(error: &dyn core::fmt::Display) -> Option<T> {
    console::print(alloc::format!("network device: {error}\n").as_bytes());
    None
}

/// Starts a device with `pairs` queue pairs. Number and length of its buffers follow from the `initial` pairs that are
/// in use from the start. A device that is shared with other cells receives the frames of all, none longer than its MTU.
fn start(
    transport: Box<dyn Transport>,
    (initial, pairs): (u8, u8),
    interrupts: NetInterrupts<'_>,
    first_vector: u8,
    is_shared: bool,
) -> Result<NetworkPort, isola_drivers::device::DeviceError> {
    let line = matches!(interrupts, NetInterrupts::Line);
    let queue_size = queue_size(initial, BUFFER_LEN);
    let (merging, reception) = match is_shared {
        true => (Merging::Never, Reception::All),
        false => (Merging::Buffers { len: merged_len(initial) }, Reception::Own),
    };
    let max_mtu = longest_mtu(initial);
    let options = NetOptions { pairs: pairs.into(), queue_size, max_mtu, merging, reception, interrupts };
    let (mut device, queues) = NetDevice::start(transport, &options, &mut DmaRegion::new)?;
    let (mac, mtu) = (device.mac(), device.mtu());
    let has_several = queues.len() > 1;
    if has_several {
        // The other pairs have no buffers yet.
        device.use_pairs(1)?;
    }
    let device = Arc::new(Mutex::new(device));
    let queues = (first_vector..)
        .zip(queues)
        .enumerate()
        .map(|(number, (vector, queue))| {
            let line = line.then(|| device.clone());
            let buffer_len = match queue.merges() {
                FeatureSupport::Yes => merged_len(initial),
                FeatureSupport::No => queue.receive_buffer_len().max(BUFFER_LEN),
            };
            let most_lent = queue_size.min(sizes::queue_size(initial, buffer_len));
            let mut queue = BareQueue::new(queue, device.clone(), line, vector, (most_lent, buffer_len));
            if number < usize::from(initial) {
                queue.supply();
            }
            Box::new(queue) as Box<dyn NetworkQueue + Send>
        })
        .collect();
    let spreading = has_several.then(|| Box::new(BareSpreading(device)) as Box<dyn FlowSpreading + Send>);
    Ok(NetworkPort { mac, mtu, headroom: HEADER_LEN, queues, spreading })
}

/// A device with several queue pairs, which either hashes flows or delivers a flow's frames to the pair that last sent
/// for that flow.
struct BareSpreading(Arc<Mutex<NetDevice>>);

impl FlowSpreading for BareSpreading {
    fn spread(
        &mut self,
        key: &[u8; SPREADING_KEY_LEN],
        queues: &[u16; SPREADING_PARTS],
        in_use: u16,
    ) -> Result<(), SpreadingRefused> {
        let mut device = self.0.lock();
        let spread = match device.spreads_by_hash() {
            FeatureSupport::Yes => device.spread(key, queues),
            FeatureSupport::No => device.use_pairs(in_use),
        };
        spread.map_err(|_| SpreadingRefused)
    }
}
