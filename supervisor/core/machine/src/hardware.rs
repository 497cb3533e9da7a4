//! The machine: [`Hardware`] with `isola-machine`.

use crate::faults::Faults;
use crate::heartbeat;
use crate::memory::Piece;
use crate::space::Space;
use crate::time::Time;
use alloc::vec::Vec;
use isola_abi::descriptor::{Descriptor, HaltMode, InterruptMode, NotificationTarget};
use isola_abi::id::{CoreId, PhysRange};
use isola_abi::management::{DeviceLocation, Fault};
use isola_machine::apic::io::InterruptLines;
use isola_machine::apic::local;
use isola_machine::authority::Authority;
use isola_machine::boot::{Machine, OwnSpace};
use isola_machine::cpu::Features;
use isola_machine::device::Device;
use isola_machine::paging;
use isola_machine::power::PowerSwitch;
use isola_machine::restart;
use isola_machine::smp::{AwayCore, LostCore, ParkedCore};
use isola_machine::space::{self, CellSpace, Plan, SegmentBytes, needed_bytes};
use isola_supervisor_core::Hardware;
use isola_supervisor_core::hardware::{Blueprint, BuildError, BuildFailure, Reclaimed, SharedPages};
use isola_supervisor_core::image::{ImagePlan, Rights, Segment, Source};
use isola_supervisor_core::inventory::{CHUNK, Chunk, CoreToken};

/// The machine, without the resources in the inventory.
#[derive(Debug)]
pub struct MachineHardware {
    time: Time,
    /// The interrupt by which cells notify the supervisor.
    notification: NotificationTarget,
    mode: InterruptMode,
    halt_mode: HaltMode,
    lines: InterruptLines,
    space: OwnSpace,
    /// The lost cores, kept for good: the resources that they could reach stay out of use.
    lost: Vec<LostCore>,
    /// The total time spent waiting for reclaimed cores, in ns.
    waited_ns: u64,
    faults: Faults,
    power: PowerSwitch,
    authority: Authority,
}

/// A core, parked or in a cell.
#[derive(Debug)]
pub enum Core {
    /// The core is parked.
    Parked(ParkedCore),
    /// The core is in a cell.
    Away(AwayCore),
}

impl CoreToken for Core {
    fn id(&self) -> CoreId {
        match self {
            Self::Parked(core) => core.core().id,
            Self::Away(core) => core.core().id,
        }
    }
}

impl MachineHardware {
    /// Returns the hardware of `machine`, whose resources are in the inventory already.
    ///
    /// Cells notify the supervisor by the interrupt `vector`.
    pub fn new(time: Time, machine: Machine, vector: u8) -> Self {
        Self {
            time,
            notification: NotificationTarget { apic: machine.boot_core.apic, vector },
            mode: local::mode(),
            halt_mode: Features::read().halt_mode(machine.command_line.halt_mode),
            lines: machine.lines,
            space: machine.space,
            lost: machine.lost,
            waited_ns: 0,
            faults: Faults::allowed(&machine.command_line),
            power: machine.power,
            authority: machine.authority,
        }
    }

    /// Arms this core's timer for `deadline_ns`, or disarms it if there is no deadline.
    pub fn arm_timer(&self, vector: u8, deadline_ns: Option<u64>) {
        match deadline_ns {
            Some(deadline_ns) => {
                let ticks = self.time.timer_ticks(deadline_ns.saturating_sub(self.now_ns()));
                local::arm_timer(self.authority, vector, ticks);
            }
            None => local::disarm_timer(self.authority),
        }
    }

    /// Returns the total time spent waiting for reclaimed cores, in ns.
    pub fn waited_ns(&self) -> u64 {
        self.waited_ns
    }

    /// Returns the descriptor of a cell, without its memory and devices.
    fn descriptor(&self, blueprint: &Blueprint<'_, Self>) -> Descriptor {
        let spec = blueprint.spec;
        let cores = blueprint.cores.iter().filter_map(|core| match core {
            Core::Parked(core) => Some(core.core()),
            Core::Away(_) => None,
        });
        Descriptor {
            version: isola_abi::VERSION,
            cell: blueprint.id,
            name: spec.name.clone(),
            arguments: spec.arguments.clone(),
            cores: cores.collect(),
            core_slot_count: blueprint.slots as u32,
            core_request_ns: u64::from(spec.lending.borrow_above_us) * 1_000,
            pool: Vec::new(),
            memory_bytes: 0,
            memory_max_bytes: blueprint.memory_max_bytes,
            region_tables: PhysRange::default(),
            image: Vec::new(),
            devices: Vec::new(),
            volumes: spec.volumes.clone(),
            served_volumes: spec.served_volumes.clone(),
            clock: self.time.clock(),
            address: spec.static_address(),
            network_service: spec.network_service.clone(),
            supervisor: Some(self.notification),
            interrupt_mode: self.mode,
            halt_mode: self.halt_mode,
            grid: spec.grid.clone(),
        }
    }
}

impl Hardware for MachineHardware {
    type Memory = Piece;
    type Core = Core;
    type Device = Device;
    type Space = Space;

    fn now_ns(&self) -> u64 {
        self.time.now_ns()
    }

    fn least_memory(&self, plan: &ImagePlan, cores: usize, slots: usize) -> u64 {
        let (own_bytes, shared_bytes) =
            (plan.memory_bytes(Source::Copied), plan.memory_bytes(Source::Shared));
        needed_bytes(own_bytes, shared_bytes, cores, slots)
    }

    fn build(
        &mut self,
        blueprint: Blueprint<'_, Self>,
        memory: Vec<Piece>,
    ) -> Result<Space, BuildFailure<Piece>> {
        let given: u64 = memory.iter().map(|piece| piece.range().len_bytes).sum();
        let descriptor = self.descriptor(&blueprint);
        let segment = |segment: &Segment| space::Segment {
            virt: segment.virt,
            memory_bytes: segment.memory_len,
            rights: match segment.rights {
                Rights::Read => paging::Rights::Read,
                Rights::ReadWrite => paging::Rights::ReadWrite,
                Rights::ReadExecute => paging::Rights::Execute,
            },
            bytes: match segment.source {
                Source::Copied => {
                    let bytes = blueprint.image.read(segment.file.end).get(segment.file.clone());
                    SegmentBytes::Copied(bytes.unwrap_or_default())
                }
                Source::Shared => SegmentBytes::Shared { offset: segment.file_pages().start as u64 },
            },
        };
        let shares = blueprint.plan.memory_bytes(Source::Shared) > 0;
        let plan = Plan {
            text: shares.then(|| blueprint.image.region()),
            segments: blueprint.plan.segments().iter().map(segment).collect(),
            entry: blueprint.plan.entry(),
            vectors: blueprint.plan.vectors(),
            memory: memory.into_iter().map(|piece| piece.0).collect(),
            devices: blueprint.devices.iter_mut().collect(),
            descriptor,
        };
        let built = CellSpace::build(plan, &self.space, &mut self.lines);
        built.map(|space| Space::new(space, self.authority)).map_err(|failure| {
            log::warn!("{}: {}", blueprint.spec.name, failure.error);
            let cause = match failure.error {
                space::BuildError::Descriptor(_) => BuildError::DescriptorTooLong,
                // The given memory has just turned out to be too little, so the least is more.
                _ => BuildError::TooSmall { least_bytes: given.saturating_add(CHUNK) },
            };
            BuildFailure { memory: Piece::of_all(failure.memory, self.authority), cause }
        })
    }

    fn dismantle(&mut self, space: Space) -> Vec<Piece> {
        match space.dismantle() {
            Ok(memory) => memory,
            Err(space) => {
                log::error!("a cell is still in use, and its memory is lost: {space:?}");
                Vec::new()
            }
        }
    }

    fn save_checkpoint(&mut self, bytes: &[u8]) -> bool {
        restart::save_checkpoint(bytes)
    }

    fn save_journal_entry(&mut self, bytes: &[u8]) {
        // An entry that is too long is lost at a restart; this supervisor's journal has it.
        let _ = restart::save_journal_entry(bytes);
    }

    fn reclaim(&mut self, cores: Vec<Core>) -> Reclaimed<Core> {
        let mut reclaimed = Reclaimed { back: Vec::new(), lost: Vec::new() };
        let began = self.now_ns();
        for core in cores {
            heartbeat::beat();
            match core {
                Core::Away(away) => match away.reclaim() {
                    Ok(parked) => reclaimed.back.push(Core::Parked(parked)),
                    Err(lost) => {
                        log::error!("{lost}");
                        reclaimed.lost.push(lost.core().id);
                        self.lost.push(lost);
                    }
                },
                core => reclaimed.back.push(core),
            }
        }
        self.waited_ns += self.now_ns().saturating_sub(began);
        reclaimed
    }

    fn location(device: &Device) -> DeviceLocation {
        device.location()
    }

    fn mac(device: &Device) -> Option<[u8; 6]> {
        device.mac()
    }

    fn reset(&mut self, device: &mut Device) -> bool {
        self.faults.at_end();
        if let Some(line) = device.interrupt_line()
            && let Err(error) = self.lines.mask(line)
        {
            log::error!("{error}");
        }
        device.reset().inspect_err(|error| log::error!("{error}")).is_ok()
    }

    fn inject(&mut self, fault: Fault) -> bool {
        self.faults.inject(fault)
    }

    fn power_off(&mut self) {
        self.power.off()
    }
}
