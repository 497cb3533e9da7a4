//! Boot: the steps from the loader's entry to a complete [`Machine`], in order.

pub mod command_line;
pub mod firmware;
mod fresh;
pub mod mp_table;
pub(crate) mod own_space;
mod recovered;
pub mod start_info;

pub use own_space::OwnSpace;
pub use recovered::{RecoveredCell, RecoveredCore, RecoveredState};

use crate::acpi::SoftOff;
use crate::apic::io::InterruptLines;
use crate::apic::local;
use crate::authority::Authority;
use crate::device::pci::{self, PciFunction};
use crate::device::virtio_mmio::{self, MmioDevice};
use crate::device::{Device, Function};
use crate::image_bounds::ImageBounds;
use crate::memory::map::subtract;
use crate::memory::physical::LowMemory;
use crate::memory::{Contents, Region};
use crate::power::PowerSwitch;
use crate::registers::Registers;
use crate::restart::{self, Survey};
use crate::smp::{LostCore, ParkedCore};
use crate::topology::ApicShifts;
use crate::{clock, cpu, dma, port, serial, switch, tables};
use alloc::boxed::Box;
use alloc::vec::Vec;
use command_line::CommandLine;
use core::arch::global_asm;
use firmware::Firmware;
use fresh::Freshness;
use isola_abi::descriptor::{Clock, Core, ImageSegment};
use isola_abi::id::{ApicId, NodeId, PhysAddr, PhysRange};
use isola_abi::layout::{IMAGE, PAGE_SIZE};
use recovered::Recovery;
use start_info::StartInfo;

global_asm!(include_str!("entry.s"), options(att_syntax));

/// The resources of a machine.
#[derive(Debug)]
pub struct Machine {
    /// The command line that the loader passed.
    pub command_line: CommandLine,
    /// Files that the loader placed beside the image.
    pub modules: Vec<Module>,
    /// All cores, by id.
    pub cores: Vec<Core>,
    /// The running core.
    pub boot_core: Core,
    /// The other cores that are in no recovered cell, parked.
    pub parked: Vec<ParkedCore>,
    /// Cores that did not start.
    pub lost: Vec<LostCore>,
    /// The free memory, by node.
    pub memory: Vec<(NodeId, Region)>,
    /// The memory of the image and its address space, in bytes.
    pub own_bytes: u64,
    /// The cycle counter at the start of the first incarnation.
    pub started_cycles: u64,
    /// The devices that no recovered cell owns. All are stopped.
    pub devices: Vec<Device>,
    /// The interrupt lines. All are masked, except those of recovered cells' devices.
    pub lines: InterruptLines,
    /// The clocks.
    pub clock: Clock,
    /// The image's address space.
    pub space: OwnSpace,
    /// The recovered state of a previous incarnation of the image; `None` in the first.
    pub recovered: Option<RecoveredState>,
    /// The power switch.
    pub power: PowerSwitch,
    /// The right to program the machine's hardware.
    pub authority: Authority,
}

/// A file that the loader placed beside the image.
#[derive(Debug)]
pub struct Module {
    /// The pages of the file, beginning with its first byte.
    pub memory: Region,
    /// Its length in bytes.
    pub len_bytes: u64,
}

/// The results of the first part of the boot, under the early tables.
struct Discovery {
    start_info: StartInfo,
    command_line: CommandLine,
    firmware: Firmware,
    boot_core: Core,
    free: Vec<PhysRange>,
    own_bytes: u64,
    started_cycles: u64,
    freshness: Freshness,
    space: OwnSpace,
    /// The survey of the first incarnation.
    survey: Option<Survey>,
    main: fn(Machine) -> !,
}

/// Memory that stays unused: that of the firmware, the trampoline and the loader.
const LOW_MEMORY: PhysRange = PhysRange::new(PhysAddr(0), 1 << 20);

/// Boots an image that owns the machine, up to its `main`. This is the part under the early tables.
///
/// # Safety
/// Only the boot code of `entry.s` may call this, with the address of the loader's start info, and the early tables in
/// use.
pub unsafe fn own_machine(start_info: u64, main: fn(Machine) -> !) -> ! {
    restart::begin(start_info);
    let survey = restart::survey();
    let started_cycles = survey.as_ref().map_or_else(cpu::cycles, |survey| survey.started_cycles);
    serial::init();
    mask_legacy_interrupts();
    // SAFETY: only `entry.s` calls this, with the early tables in use.
    let memory = unsafe { LowMemory::new() };
    let start_info =
        StartInfo::read(&memory, PhysAddr(start_info)).expect("a PVH loader that passes a memory map");
    let command_line = CommandLine::parse(&start_info.command_line);
    let boot_apic = cpu::initial_apic_id();
    let firmware = Firmware::read(&memory, &start_info, (boot_apic, local::best_mode()), &ApicShifts::read());
    let boot_core = boot_core(&firmware, boot_apic);
    let bounds = ImageBounds::of_image();
    let mut reserved = alloc::vec![LOW_MEMORY, bounds.loaded()];
    reserved.extend(&start_info.occupied);
    reserved.extend(&start_info.modules);
    let own = take_own_memory(&subtract(&start_info.ram, &reserved), firmware.cores.len(), &start_info.ram);
    reserved.push(own);
    let free = subtract(&start_info.ram, &reserved);
    let own_bytes = own.len_bytes + bounds.loaded().len_bytes;
    // SAFETY: the memory is RAM that no other code uses: it is cut out of the free memory.
    let own = unsafe { Region::new(own, Contents::Unknown) };
    let (mut mark, own) = own.split(PAGE_SIZE).expect("the image's own memory has more than a page");
    let hypervisor = cpu::Features::read().hypervisor;
    let freshness = Freshness::find_out(&start_info.ram, hypervisor, mark.bytes_mut());
    let space = OwnSpace::build(
        &bounds,
        &start_info.ram,
        &firmware.cores,
        boot_core,
        own,
        firmware.memory_nodes.clone(),
    )
    .expect("enough memory for the image's own address space");

    let (root, stack_top) = (space.root().0, OwnSpace::boot_stack_top(boot_core));
    let discovery = Discovery {
        start_info,
        command_line,
        firmware,
        boot_core,
        free,
        own_bytes,
        started_cycles,
        freshness,
        space,
        survey,
        main,
    };
    let discovery = Box::into_raw(Box::new(discovery));
    // SAFETY: the space maps the image, which contains the heap, and the stack. Nothing on the current stack is used
    // any more. The early tables do not map the switch page, so this uses the same code in the image, which both spaces
    // map at the same address.
    unsafe { switch::enter_from_image(root, stack_top, in_own_space as *const () as u64, discovery as u64) }
}

/// Runs the part of the boot in the image's own address space.
extern "sysv64" fn in_own_space(discovery: *mut Discovery) -> ! {
    // SAFETY: `own_machine` created the value for this call alone.
    let discovery = *unsafe { Box::from_raw(discovery) };
    let Discovery {
        start_info,
        command_line,
        firmware,
        boot_core,
        free,
        own_bytes,
        started_cycles,
        freshness,
        mut space,
        survey,
        main,
    } = discovery;
    let core_page = space.core_page(boot_core).expect("memory for descriptor tables");
    // SAFETY: the page and the table are in the direct map, and belong to this core for good.
    unsafe { tables::load(core_page, core_page, space.interrupt_table()) };
    cpu::protect();
    local::set_mode(local::best_mode());
    local::enable();
    local::end_all_interrupts();
    dma::set_image(image_segments());

    let clock = match &survey {
        Some(survey) => survey.clock,
        None => clock::calibrate(firmware.timer_port).unwrap_or_else(|error| panic!("{error}")),
    };
    let mut devices = find_devices(&firmware, &command_line, &mut space, survey.as_ref());
    if survey.is_none() {
        let functions = devices.iter().filter_map(Device::survey).collect();
        restart::save_survey(&Survey { clock, started_cycles, functions });
    }
    let mut recovery = Recovery::from_records(&free, &firmware, boot_core, &devices);
    let power = find_power_switch(&firmware, &mut space);
    let lines = find_interrupt_lines(&firmware, &mut space, &recovery.lines(&devices));
    let (parked, lost) = recovery.start_cores(&firmware, boot_core, &clock, &mut space);
    recovery.reset(&mut devices);
    let (free, recovered) = recovery.settle(free, &lost, &mut devices, &space);

    let modules = start_info.modules.iter().map(|module| take_module(*module)).collect();
    let memory = firmware
        .memory_nodes
        .cut(&free)
        .into_iter()
        .flat_map(|(node, range)| freshness.split(range).map(move |part| (node, part)))
        // SAFETY: the ranges are free RAM in the direct map, and do not overlap.
        .map(|(node, (range, contents))| (node, unsafe { Region::new(range, contents) }))
        .collect();
    main(Machine {
        command_line,
        modules,
        cores: firmware.cores,
        boot_core,
        parked,
        lost,
        memory,
        own_bytes,
        started_cycles,
        devices,
        lines,
        clock,
        space,
        recovered,
        power,
        authority: Authority::OWN,
    })
}

/// Masks the legacy interrupt controllers (8259), which firmware leaves enabled.
fn mask_legacy_interrupts() {
    // SAFETY: the controllers have no access to memory.
    unsafe {
        port::write_u8(0x21, 0xff);
        port::write_u8(0xa1, 0xff);
    }
}

fn boot_core(firmware: &Firmware, apic: ApicId) -> Core {
    *firmware
        .cores
        .iter()
        .find(|core| core.apic == apic)
        .expect("the core that runs is a core of the machine")
}

/// Returns memory for the image's address space: the first that is large enough, below 4 GiB, as the early tables map
/// no more.
fn take_own_memory(free: &[PhysRange], core_count: usize, ram: &[PhysRange]) -> PhysRange {
    let len_bytes = PAGE_SIZE + OwnSpace::needed_bytes(core_count, ram);
    let fits = |range: &&PhysRange| range.len_bytes >= len_bytes && range.start.0 + len_bytes <= 1 << 32;
    let range = free.iter().find(fits).expect("enough memory below 4 GiB");
    PhysRange::new(range.start, len_bytes)
}

/// Returns the image's segments, for the device addresses of its constants and variables.
fn image_segments() -> Vec<ImageSegment> {
    let bounds = ImageBounds::of_image();
    let loaded = bounds.loaded();
    alloc::vec![ImageSegment { virt: IMAGE + loaded.start.0, memory: loaded }]
}

/// Returns the machine's power switch.
fn find_power_switch(firmware: &Firmware, space: &mut OwnSpace) -> PowerSwitch {
    match firmware.soft_off {
        Some(SoftOff::Port { port, value }) => PowerSwitch::of_port(port, value),
        Some(SoftOff::Register { address, value }) => {
            // SAFETY: firmware names this register.
            let register = unsafe { space.map_registers(PhysRange::new(address, 1)) };
            PowerSwitch::of_register(register.expect("memory to map the sleep control register"), value)
        }
        None => PowerSwitch::none(),
    }
}

/// Returns the machine's interrupt lines, masked except those in `used`.
fn find_interrupt_lines(firmware: &Firmware, space: &mut OwnSpace, used: &[u32]) -> InterruptLines {
    let mut lines = InterruptLines::default();
    for entry in &firmware.io_apics {
        // SAFETY: firmware names this I/O APIC.
        let registers = unsafe { space.map_registers(PhysRange::new(entry.address, 0x1000)) };
        lines.add(registers.expect("memory to map an I/O APIC"), entry.first_line, used);
    }
    lines
}

/// Returns all devices of the machine: PCI functions, and virtio devices with registers in memory. With a survey, the
/// PCI functions are those that it lists, and are not accessed.
fn find_devices(
    firmware: &Firmware,
    command_line: &CommandLine,
    space: &mut OwnSpace,
    survey: Option<&Survey>,
) -> Vec<Device> {
    // SAFETY: firmware, loader or PCI function name all ranges that are mapped here as device registers.
    let mut map = |range| unsafe { space.map_registers(range) }.expect("memory to map device registers");
    let mut devices = Vec::new();
    for segment in &firmware.pci_segments {
        let len_bytes = (u64::from(segment.last_bus - segment.first_bus) + 1) << 20;
        let base = PhysAddr(segment.base.0 + (u64::from(segment.first_bus) << 20));
        let config: Registers = map(PhysRange::new(base, len_bytes));
        let functions = match survey {
            Some(survey) => {
                survey.functions.iter().filter_map(|known| PciFunction::known(known, &config, base)).collect()
            }
            None => pci::enumerate(&config, base, segment.first_bus),
        };
        for mut function in functions {
            map_bars(&mut function, &mut map);
            devices.push(Device::new(Function::Pci(function)));
        }
    }
    let mut windows = command_line.mmio_devices.clone();
    if firmware.microvm_devices {
        let first_lines: Vec<u32> = firmware.io_apics.iter().map(|entry| entry.first_line).collect();
        windows.extend(virtio_mmio::microvm_windows(&first_lines));
    }
    for window in windows {
        let registers = map(window.registers);
        devices.extend(MmioDevice::probe(window, registers).map(Function::Mmio).map(Device::new));
    }
    devices
}

/// Maps the registers of a function for which Isola has a driver.
fn map_bars(function: &mut PciFunction, map: &mut impl FnMut(PhysRange) -> Registers) {
    if function.kind().is_none() {
        return;
    }
    for bar in function.bars().to_vec() {
        let registers = map(bar.memory);
        function.add_window(bar.index, registers);
    }
}

fn take_module(module: PhysRange) -> Module {
    let pages = module.len_bytes.next_multiple_of(PAGE_SIZE);
    // SAFETY: loaders place modules on pages of their own, in RAM, and `own_machine` has reserved these.
    let memory = unsafe { Region::new(PhysRange::new(module.start, pages), Contents::Unknown) };
    Module { memory, len_bytes: module.len_bytes }
}
