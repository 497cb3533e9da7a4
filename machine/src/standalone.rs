//! Boot of a cell image without a supervisor: it discovers the machine, builds the address space that a supervisor
//! would have built, and enters it with all cores.
//!
//! The boot's tables and stacks, a few hundred KiB, stay unused afterwards.

use crate::apic::local;
use crate::boot::command_line::StandaloneVolume;
use crate::boot::{self, Machine};
use crate::cpu::Features;
use crate::device::Device;
use crate::image_bounds::ImageBounds;
use crate::memory::Region;
use crate::paging::Rights;
use crate::space::{CellSpace, InPlace, Plan, Segment, SegmentBytes};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use isola_abi::descriptor::{Descriptor, DeviceKind};
use isola_abi::id::{CellId, MAX_CORES, PhysAddr, PhysRange};
use isola_abi::layout::IMAGE;
use isola_abi::network_service::NetworkService;
use isola_abi::volume::VolumeMount;

/// The entry of the image's note.
static ENTRY: AtomicU64 = AtomicU64::new(0);

/// Boots a cell image that a PVH loader entered, and calls its entry on every core. The command line sets the cell's
/// name, address and arguments, see [`boot::command_line`].
///
/// # Safety
/// As for [`boot::own_machine`].
pub unsafe fn boot(start_info: u64, entry: extern "sysv64" fn(u64) -> !) -> ! {
    ENTRY.store(entry as usize as u64, Ordering::Relaxed);
    // SAFETY: the caller upholds the contract of `own_machine`.
    unsafe { boot::own_machine(start_info, become_cell) }
}

/// Turns the whole machine into one cell and enters it with all cores.
fn become_cell(machine: Machine) -> ! {
    let Machine { command_line, mut parked, memory, mut devices, mut lines, clock, space, boot_core, .. } =
        machine;
    let mut cores = alloc::vec![boot_core];
    // A cell has at most `MAX_CORES`; further cores stay parked.
    parked.truncate(MAX_CORES - 1);
    cores.extend(parked.iter().map(|core| core.core()));
    let (used, volumes) = used_devices(&mut devices, command_line.volumes);
    let descriptor = Descriptor {
        version: isola_abi::VERSION,
        cell: CellId(0),
        name: command_line.name.unwrap_or_else(|| "alone".into()),
        arguments: command_line.arguments,
        core_slot_count: cores.len() as u32,
        core_request_ns: 0,
        cores,
        pool: Vec::new(),
        memory_bytes: 0,
        memory_max_bytes: 0,
        region_tables: PhysRange::default(),
        image: Vec::new(),
        devices: Vec::new(),
        volumes,
        served_volumes: Vec::new(),
        network_service: NetworkService::None,
        clock,
        address: command_line.address,
        supervisor: None,
        interrupt_mode: local::mode(),
        halt_mode: Features::read().halt_mode(command_line.halt_mode),
        grid: command_line.grid,
    };
    let memory: Vec<Region> = memory.into_iter().map(|(_, region)| region).collect();
    let plan = Plan {
        text: None,
        segments: running_segments(),
        entry: ENTRY.load(Ordering::Relaxed),
        vectors: crate::interrupts::vectors(),
        memory,
        devices: used,
        descriptor,
    };
    let cell = match CellSpace::build(plan, &space, &mut lines) {
        Ok(cell) => cell,
        Err(failure) => panic!("{}", failure.error),
    };
    for (index, core) in parked.into_iter().enumerate() {
        match cell.enter(core, index + 1) {
            Ok(core) => drop(core),
            Err(error) => panic!("a core does not enter: {error:?}"),
        }
    }
    cell.enter_here(0)
}

/// Returns the devices that the image uses, with its volumes: all network devices, and as many block devices as there
/// are volumes on the command line, in the order in which the machine lists them.
fn used_devices(
    devices: &mut [Device],
    volumes: Vec<StandaloneVolume>,
) -> (Vec<&mut Device>, Vec<VolumeMount>) {
    let (mut volumes, mut mounts) = (volumes.into_iter(), Vec::new());
    let used = devices.iter_mut().filter(|device| match device.kind() {
        Some(DeviceKind::Network) => true,
        Some(DeviceKind::Block) => volumes.next().is_some_and(|StandaloneVolume { path, access }| {
            let name = path.trim_start_matches('/').into();
            mounts.push(VolumeMount { device: device.location(), name, path, access });
            true
        }),
        Some(DeviceKind::Console) | None => false,
    });
    (used.collect(), mounts)
}

/// Returns the segments of the running image, which are at their link addresses.
fn running_segments() -> Vec<Segment<'static>> {
    let bounds = ImageBounds::of_image();
    [
        (bounds.text_start, bounds.text_end, Rights::Execute),
        (bounds.rodata_start, bounds.rodata_end, Rights::Read),
        (bounds.data_start, bounds.data_end, Rights::ReadWrite),
    ]
    .into_iter()
    .map(|(start, end, rights)| {
        // SAFETY: the loader has placed the whole segment there, and only this image uses it, before the cell is
        // entered and afterwards.
        let in_place = unsafe { InPlace::new(PhysAddr(start - IMAGE)) };
        Segment { virt: start, memory_bytes: end - start, rights, bytes: SegmentBytes::InPlace(in_place) }
    })
    .collect()
}
