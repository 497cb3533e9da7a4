//! Recovery of a previous incarnation's cells, which continue to run while the image boots again.
//!
//! The order of steps keeps their resources apart from the free ones. First the claims are claims, without any effect
//! on the machine. Then all cores that no cell owns are reclaimed, and all devices that no cell owns are reset. Only
//! then is memory free: the part that no cell owns, and to which no core or device writes any more.

use super::{Firmware, OwnSpace};
use crate::device::Device;
use crate::memory::map::subtract;
use crate::memory::{Contents, Region, SharedRegion};
use crate::restart::{
    self, Claim, DeviceAddress, MachineResources, RestartHistory, UnreadableRecords, ValidatedClaims,
    validate,
};
use crate::smp::{self, AwayCore, Candidate, LostCore, ParkedCore, SharedParkContext};
use crate::space::CellSpace;
use alloc::vec::Vec;
use isola_abi::descriptor::{Clock, Core};
use isola_abi::id::{CoreId, PhysRange};
use isola_abi::stage::Stage;

/// The recovered state of a previous incarnation.
#[derive(Debug)]
pub struct RecoveredState {
    /// The history of incarnations.
    pub history: RestartHistory,
    /// The cells.
    pub recovered_cells: Vec<RecoveredCell>,
    /// Their shared texts, each once.
    pub texts: Vec<SharedRegion>,
    /// The number of cells whose ownership records are unreadable or invalid, or that were just entering or ending.
    /// Each is counted once, by the first incarnation that finds it so.
    pub gone: usize,
    /// Memory that a lost core or device may still write to.
    pub withheld: Vec<PhysRange>,
}

/// A cell of a previous incarnation.
#[derive(Debug)]
pub struct RecoveredCell {
    /// Its stage.
    pub stage: Stage,
    /// Its address space.
    pub space: CellSpace,
    /// By core slot: the core that is there.
    pub cores: Vec<Option<RecoveredCore>>,
    /// Its devices.
    pub devices: Vec<Device>,
    /// All its memory.
    pub memory: Vec<PhysRange>,
    /// The state that the previous incarnation saved for its successor.
    pub saved_state: Vec<u8>,
}

/// A core of a cell of a previous incarnation.
#[derive(Debug)]
pub enum RecoveredCore {
    /// In the cell.
    Away(AwayCore),
    /// Parked: the cell has not been started.
    Parked(ParkedCore),
    /// Lost: the core did not come back.
    Lost(CoreId),
}

/// The recovery in progress.
#[derive(Debug, Default)]
pub(super) struct Recovery {
    history: Option<RestartHistory>,
    claims: ValidatedClaims,
    unread: UnreadableRecords,
    /// The cores of cells that have not been started.
    waiting: Vec<ParkedCore>,
    /// The cores of the others: their identities, and the data for their return.
    away: Vec<(Candidate, SharedParkContext)>,
    /// Whether all devices that no cell owns were reset.
    devices_reset: DevicesReset,
}

/// Whether every device that no cell owns was reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum DevicesReset {
    #[default]
    Yes,
    No,
}

impl Recovery {
    /// Settles the ownership records that the previous incarnation left.
    pub(super) fn from_records(
        free: &[PhysRange],
        firmware: &Firmware,
        boot_core: Core,
        devices: &[Device],
    ) -> Self {
        let Some(history) = restart::history() else { return Self::default() };
        let (found, unread) = restart::take_claims(free);
        let cores: Vec<Core> = firmware.cores.iter().copied().filter(|core| *core != boot_core).collect();
        let devices: Vec<DeviceAddress> = devices.iter().map(Device::address).collect();
        let mut claims =
            validate(found, &MachineResources { memory: free, cores: &cores, devices: &devices });
        for core in claims.accepted.iter_mut().flat_map(|claim| claim.cores.iter_mut().flatten()) {
            // The id and the APIC id identify the core; its node and site are those of the firmware.
            *core = *cores.iter().find(|known| known.id == core.id).unwrap_or(core);
        }
        Self { history: Some(history), claims, unread, ..Self::default() }
    }

    /// Returns whether a recovered cell has the device.
    fn has(&self, device: &Device) -> bool {
        let address = device.address();
        self.claims.accepted.iter().any(|claim| claim.resources.devices.contains(&address))
    }

    /// Returns the interrupt lines of recovered cells' devices.
    pub(super) fn lines(&self, devices: &[Device]) -> Vec<u32> {
        devices.iter().filter(|device| self.has(device)).filter_map(Device::interrupt_line).collect()
    }

    /// Starts all cores that are in no cell. Returns those that no cell owns: the parked ones, and the lost ones.
    pub(super) fn start_cores(
        &mut self,
        firmware: &Firmware,
        boot_core: Core,
        clock: &Clock,
        space: &mut OwnSpace,
    ) -> (Vec<ParkedCore>, Vec<LostCore>) {
        let shared = || SharedParkContext {
            root: space.root(),
            interrupt_table: space.parked_interrupt_table(),
            tsc_hz: clock.tsc_hz,
        };
        smp::create_control_blocks(firmware.cores.len());
        let (all, mut pages) = (shared(), Vec::new());
        let others: Vec<Core> = firmware.cores.iter().copied().filter(|core| *core != boot_core).collect();
        for core in &others {
            pages.push(space.core_page(*core).expect("memory for descriptor tables"));
        }
        let candidate = |(core, core_page): (&Core, u64)| Candidate {
            core: *core,
            stack_top: OwnSpace::parked_stack_top(*core),
            core_page,
        };
        let held = &self.claims.accepted;
        let is_away = |candidate: &Candidate| {
            let of = |claim: &&Claim| claim.cores().any(|core| core == candidate.core);
            held.iter().find(of).is_some_and(|claim| claim.resources.stage != Stage::Built)
        };
        let (away, started): (Vec<Candidate>, Vec<Candidate>) =
            others.iter().zip(pages).map(candidate).partition(is_away);
        let (came, lost) = smp::bring_up(&started, &all);
        let is_waiting =
            |core: &ParkedCore| held.iter().flat_map(Claim::cores).any(|held| held == core.core());
        let (waiting, free) = came.into_iter().partition(is_waiting);
        self.away = away.into_iter().map(|candidate| (candidate, all.clone())).collect();
        self.waiting = waiting;
        (free, lost)
    }

    /// Resets all devices that no cell owns; removes those that do not stop from the list.
    pub(super) fn reset(&mut self, devices: &mut Vec<Device>) {
        let held: Vec<bool> = devices.iter().map(|device| self.has(device)).collect();
        let mut held = held.into_iter();
        let mut devices_reset = DevicesReset::Yes;
        devices.retain_mut(|device| {
            let stays = held.next() == Some(true) || device.reset().is_ok();
            if !stays {
                devices_reset = DevicesReset::No;
            }
            stays
        });
        self.devices_reset = devices_reset;
    }

    /// Completes the recovered cells with their cores and devices. Returns the free memory, and the recovered state.
    pub(super) fn settle(
        self,
        free: Vec<PhysRange>,
        lost: &[LostCore],
        devices: &mut Vec<Device>,
        space: &OwnSpace,
    ) -> (Vec<PhysRange>, Option<RecoveredState>) {
        let Self { history, claims, unread, mut waiting, mut away, devices_reset } = self;
        let Some(history) = history else { return (free, None) };
        let gone = claims.newly_rejected() + unread.new;
        let ValidatedClaims { accepted: held, rejected } = claims;
        let owned: Vec<PhysRange> = held.iter().flat_map(|claim| claim.resources.memory.clone()).collect();
        let mut ranges: Vec<PhysRange> = held.iter().filter_map(|claim| claim.resources.text).collect();
        ranges.sort_unstable();
        ranges.dedup();
        let free = subtract(&subtract(&free, &owned), &ranges);
        // SAFETY: the memory is in the direct map, as `restart::validate` has checked; the ranges are disjoint, no cell
        // owns any of them, and they are not part of the free memory.
        let shared = |range| unsafe { SharedRegion::new(Region::new(range, Contents::Unknown)) };
        let texts: Vec<SharedRegion> = ranges.into_iter().map(shared).collect();
        let recovered_cells = held
            .into_iter()
            .map(|claim| {
                let text = texts.iter().find(|text| claim.resources.text == Some(text.range())).cloned();
                // SAFETY: `CellSpace::save_record` of a previous incarnation wrote the ownership record, as its
                // checksum shows, and nothing in it contradicts the machine or another record. Its memory is not part
                // of the free memory.
                let cell = unsafe { CellSpace::adopt(&claim, text, space.largest_page()) };
                let resources = &claim.resources;
                let mut core = |core: Core| {
                    let mut parked = waiting.extract_if(.., |parked| parked.core() == core);
                    if let Some(parked) = parked.next() {
                        return RecoveredCore::Parked(parked);
                    }
                    let found = away.extract_if(.., |(candidate, _)| candidate.core == core).next();
                    // SAFETY: the ownership record says that the core is in the cell; the share keeps the cell's memory
                    // from other use.
                    let adopted = found.and_then(|(candidate, shared)| unsafe {
                        smp::adopt(&candidate, &shared, cell.share())
                    });
                    adopted.map_or(RecoveredCore::Lost(core.id), RecoveredCore::Away)
                };
                let cores = claim.cores.iter().map(|slot| slot.map(&mut core)).collect();
                let mut own: Vec<Device> =
                    devices.extract_if(.., |device| resources.devices.contains(&device.address())).collect();
                own.iter_mut().for_each(|device| device.lend(cell.share()));
                RecoveredCell {
                    stage: resources.stage,
                    space: cell,
                    cores,
                    devices: own,
                    memory: resources.memory.clone(),
                    saved_state: claim.resources.saved_state.clone(),
                }
            })
            .collect();
        // Lost cores and devices may write to the memory of rejected records; if records are unreadable, to all free
        // memory.
        let is_safe = lost.is_empty() && devices_reset == DevicesReset::Yes;
        let of = |claim: &Claim| claim.resources.memory.clone().into_iter().chain(claim.resources.text);
        let gone_ranges: Vec<PhysRange> = rejected.iter().flat_map(of).collect();
        let withheld = match (is_safe, unread.all) {
            (true, _) => Vec::new(),
            (false, 0) => subtract(&free, &subtract(&free, &gone_ranges)),
            (false, _) => free.clone(),
        };
        if !is_safe {
            // The next incarnation has to know as well.
            restart::save_rejected_claims(rejected.iter().map(|claim| claim.location), unread.all);
            // A text that is also part of rejected records may be written to: it stays in use for good, so that no new
            // owner gets it.
            let is_named = |text: &&SharedRegion| {
                unread.all > 0 || subtract(&[text.range()], &gone_ranges) != [text.range()]
            };
            texts.iter().filter(is_named).cloned().for_each(core::mem::forget);
        }
        let free = subtract(&free, &withheld);
        (free, Some(RecoveredState { history, recovered_cells, texts, gone, withheld }))
    }
}

impl RecoveredCell {
    /// Returns the ids of its cores.
    pub fn core_ids(&self) -> impl Iterator<Item = CoreId> {
        self.cores.iter().flatten().map(|core| match core {
            RecoveredCore::Away(core) => core.core().id,
            RecoveredCore::Parked(core) => core.core().id,
            RecoveredCore::Lost(id) => *id,
        })
    }
}
