//! What a previous incarnation of the image has left: cells, which run on while the image comes up once more.
//!
//! The order is what keeps them apart from what is free. First it is settled who has what, by looking alone. Then all
//! cores that no cell has are taken back and all devices that no cell has are reset. Only then is memory free: what no
//! cell has, and nobody writes to any more.

use super::{Firmware, OwnSpace};
use crate::device::Device;
use crate::memory::map::subtract;
use crate::memory::{Contents, Region, SharedRegion};
use crate::restart::{self, Claim, DevicePlace, Facts, Past, Settled, Unread, settle};
use crate::smp::{self, AwayCore, Candidate, Homes, LostCore, ParkedCore};
use crate::space::CellSpace;
use alloc::vec::Vec;
use isola_abi::descriptor::{Clock, Core};
use isola_abi::id::{CoreId, PhysRange};
use isola_abi::stage::Stage;

/// What a previous incarnation has left.
#[derive(Debug)]
pub struct RecoveredState {
    /// What was before.
    pub past: Past,
    /// The cells.
    pub recovered_cells: Vec<RecoveredCell>,
    /// What they stand on beside others, each once.
    pub texts: Vec<SharedRegion>,
    /// How many cells there were of which it cannot be told what they had, or which were just beginning or ending; each is
    /// counted once, by the first incarnation that finds it so.
    pub gone: usize,
    /// Memory that something may still write to that did not come back.
    pub withheld: Vec<PhysRange>,
}

/// A cell of a previous incarnation.
#[derive(Debug)]
pub struct RecoveredCell {
    /// How far it is.
    pub stage: Stage,
    /// Its space.
    pub space: CellSpace,
    /// By place: the core that is there.
    pub cores: Vec<Option<RecoveredCore>>,
    /// Its devices.
    pub devices: Vec<Device>,
    /// All its memory.
    pub memory: Vec<PhysRange>,
    /// What the previous incarnation wanted to be known again of it.
    pub saved_state: Vec<u8>,
}

/// A core of a cell of a previous incarnation.
#[derive(Debug)]
pub enum RecoveredCore {
    /// It is in the cell.
    Away(AwayCore),
    /// It waits: the cell has not been started.
    Parked(ParkedCore),
    /// It did not come back.
    Lost(CoreId),
}

/// What is being settled.
#[derive(Debug, Default)]
pub(super) struct Inheritance {
    past: Option<Past>,
    settled: Settled,
    unread: Unread,
    /// The cores of cells that have not been started.
    waiting: Vec<ParkedCore>,
    /// The cores of the others: who they are, and where they live when they come back.
    away: Vec<(Candidate, Homes)>,
    /// Whether all came back that had to.
    all_back: AllBack,
}

/// Whether everything came back that no cell has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum AllBack {
    #[default]
    Yes,
    No,
}

impl Inheritance {
    /// Looks who has what.
    pub(super) fn look(free: &[PhysRange], firmware: &Firmware, boot_core: Core, devices: &[Device]) -> Self {
        let Some(past) = restart::past() else { return Self::default() };
        let (claims, unread) = restart::take_claims(free);
        let cores: Vec<Core> = firmware.cores.iter().copied().filter(|core| *core != boot_core).collect();
        let devices: Vec<DevicePlace> = devices.iter().map(Device::place).collect();
        let mut settled = settle(claims, &Facts { memory: free, cores: &cores, devices: &devices });
        for core in settled.held.iter_mut().flat_map(|claim| claim.cores.iter_mut().flatten()) {
            // Where it stands is not what makes it that core.
            *core = *cores.iter().find(|known| known.id == core.id).unwrap_or(core);
        }
        Self { past: Some(past), settled, unread, ..Self::default() }
    }

    /// The cell that has a device.
    fn has(&self, device: &Device) -> bool {
        let place = device.place();
        self.settled.held.iter().any(|claim| claim.holding.devices.contains(&place))
    }

    /// The interrupt lines of cells' devices.
    pub(super) fn lines(&self, devices: &[Device]) -> Vec<u32> {
        devices.iter().filter(|device| self.has(device)).filter_map(Device::interrupt_line).collect()
    }

    /// Starts all cores that are in no cell. Returns those that are nobody's: those that came, and those that did not.
    pub(super) fn start_cores(
        &mut self,
        firmware: &Firmware,
        boot_core: Core,
        clock: &Clock,
        space: &mut OwnSpace,
    ) -> (Vec<ParkedCore>, Vec<LostCore>) {
        let homes = || Homes {
            root: space.root(),
            interrupt_table: space.parked_interrupt_table(),
            tsc_hz: clock.tsc_hz,
        };
        let (all, mut pages) = (homes(), Vec::new());
        let others: Vec<Core> = firmware.cores.iter().copied().filter(|core| *core != boot_core).collect();
        for core in &others {
            pages.push(space.core_page(*core).expect("memory for descriptor tables"));
        }
        let candidate = |(core, core_page): (&Core, u64)| Candidate {
            core: *core,
            stack_top: OwnSpace::parked_stack_top(*core),
            core_page,
        };
        let held = &self.settled.held;
        let is_away = |candidate: &Candidate| {
            let of = |claim: &&Claim| claim.cores().any(|core| core == candidate.core);
            held.iter().find(of).is_some_and(|claim| claim.holding.stage != Stage::Built)
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

    /// Resets all devices that no cell has; those that do not stop are left out from here on.
    pub(super) fn reset(&mut self, devices: &mut Vec<Device>) {
        let held: Vec<bool> = devices.iter().map(|device| self.has(device)).collect();
        let mut held = held.into_iter();
        let mut all_back = AllBack::Yes;
        devices.retain_mut(|device| {
            let stays = held.next() == Some(true) || device.reset().is_ok();
            if !stays {
                all_back = AllBack::No;
            }
            stays
        });
        self.all_back = all_back;
    }

    /// Gives cells what is theirs. Returns the memory that is free, and the rest.
    pub(super) fn settle(
        self,
        free: Vec<PhysRange>,
        lost: &[LostCore],
        devices: &mut Vec<Device>,
        space: &OwnSpace,
    ) -> (Vec<PhysRange>, Option<RecoveredState>) {
        let Self { past, settled, unread, mut waiting, mut away, all_back } = self;
        let Some(past) = past else { return (free, None) };
        let gone = settled.newly_void() + unread.new;
        let Settled { held, void } = settled;
        let owned: Vec<PhysRange> = held.iter().flat_map(|claim| claim.holding.memory.clone()).collect();
        let mut ranges: Vec<PhysRange> = held.iter().filter_map(|claim| claim.holding.text).collect();
        ranges.sort_unstable();
        ranges.dedup();
        let free = subtract(&subtract(&free, &owned), &ranges);
        // SAFETY: it is memory in the direct map, as `settle` has looked; the ranges are apart, no cell owns any of them, and
        // they are not among what is free.
        let shared = |range| unsafe { SharedRegion::new(Region::new(range, Contents::Unknown)) };
        let texts: Vec<SharedRegion> = ranges.into_iter().map(shared).collect();
        let recovered_cells = held
            .into_iter()
            .map(|claim| {
                let text = texts.iter().find(|text| claim.holding.text == Some(text.range())).cloned();
                // SAFETY: the ownership record is as it was written, by `CellSpace::keep` of a previous incarnation, and nothing in it
                // contradicts the machine or another ownership record. Its memory is not among what is free.
                let cell = unsafe { CellSpace::adopt(&claim, text, space.largest_page()) };
                let holding = &claim.holding;
                let mut core = |core: Core| {
                    let mut parked = waiting.extract_if(.., |parked| parked.core() == core);
                    if let Some(parked) = parked.next() {
                        return RecoveredCore::Parked(parked);
                    }
                    let found = away.extract_if(.., |(candidate, _)| candidate.core == core).next();
                    // SAFETY: the ownership record says that the core is in the cell; the share keeps the cell as it is.
                    let adopted = found.and_then(|(candidate, homes)| unsafe {
                        smp::adopt(&candidate, &homes, cell.share())
                    });
                    adopted.map_or(RecoveredCore::Lost(core.id), RecoveredCore::Away)
                };
                let cores = claim.cores.iter().map(|place| place.map(&mut core)).collect();
                let mut own: Vec<Device> =
                    devices.extract_if(.., |device| holding.devices.contains(&device.place())).collect();
                own.iter_mut().for_each(|device| device.lend(cell.share()));
                RecoveredCell {
                    stage: holding.stage,
                    space: cell,
                    cores,
                    devices: own,
                    memory: holding.memory.clone(),
                    saved_state: claim.holding.saved_state.clone(),
                }
            })
            .collect();
        // What did not come back may write to what a cell had that is gone: to all that is free, where it cannot be told
        // what that was.
        let is_safe = lost.is_empty() && all_back == AllBack::Yes;
        let of = |claim: &Claim| claim.holding.memory.clone().into_iter().chain(claim.holding.text);
        let gone_ranges: Vec<PhysRange> = void.iter().flat_map(of).collect();
        let withheld = match (is_safe, unread.all) {
            (true, _) => Vec::new(),
            (false, 0) => subtract(&free, &subtract(&free, &gone_ranges)),
            (false, _) => free.clone(),
        };
        if !is_safe {
            // The incarnation after this one has to know as well.
            restart::leave_claims(void.iter().map(|claim| claim.place), unread.all);
            // What others stand on as well is in use for good, whatever becomes of them.
            let is_named = |text: &&SharedRegion| {
                unread.all > 0 || subtract(&[text.range()], &gone_ranges) != [text.range()]
            };
            texts.iter().filter(is_named).cloned().for_each(core::mem::forget);
        }
        let free = subtract(&free, &withheld);
        (free, Some(RecoveredState { past, recovered_cells, texts, gone, withheld }))
    }
}

impl RecoveredCell {
    /// Which cores it has.
    pub fn core_ids(&self) -> impl Iterator<Item = CoreId> {
        self.cores.iter().flatten().map(|core| match core {
            RecoveredCore::Away(core) => core.core().id,
            RecoveredCore::Parked(core) => core.core().id,
            RecoveredCore::Lost(id) => *id,
        })
    }
}
