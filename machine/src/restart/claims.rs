//! Validation of the ownership records that a previous incarnation left: pure, and without trust in any of them.
//!
//! A record is accepted if all of it can be true: its memory is memory of the machine, its cores and devices exist, the
//! parts of the cell are in its memory, and no other record claims any of these resources. Its text must be memory that
//! no record claims as its own; several cells may share the same text, but not overlapping ones. A record that fails is
//! rejected, and the resources that it names are free. If two records claim the same resource, both are rejected: it is
//! unknown which one is right, and each cell would have access to the other's memory. That is safe, as cores that no
//! accepted record names are reclaimed by INIT, and devices are reset, before any memory gets a new owner. If one of
//! these does not come back, the memory of rejected records stays unused.

use super::ownership::{CellResources, DeviceAddress};
use super::persistent::RecordState;
use alloc::vec::Vec;
use isola_abi::descriptor::{Core, area_bytes};
use isola_abi::id::{MAX_CORES, PhysAddr, PhysRange};
use isola_abi::layout::{PAGE_SIZE, report_bytes};
use isola_abi::links::{LEAST_LINKS, MAX_LINKS};
use isola_abi::stage::Stage;

/// The unit of cells' memory, in bytes: all ranges are multiples of it.
const CHUNK: u64 = isola_abi::growth::SMALLEST_BLOCK;

/// The machine's resources, against which ownership records are checked.
#[derive(Debug)]
pub(crate) struct MachineResources<'a> {
    /// The memory that the image does not use itself, in ascending order.
    pub(crate) memory: &'a [PhysRange],
    /// The cores, except the running one.
    pub(crate) cores: &'a [Core],
    /// The devices.
    pub(crate) devices: &'a [DeviceAddress],
}

/// An ownership record that was found.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Claim {
    /// The record's location.
    pub(crate) location: PhysRange,
    /// The kind of its entry.
    pub(crate) state: RecordState,
    /// The number of its valid copy.
    pub(crate) number: u64,
    /// Its contents.
    pub(crate) resources: CellResources,
    /// The cores that the cell has now, by core slot.
    pub(crate) cores: Vec<Option<Core>>,
}

impl Claim {
    /// Returns the cores that the cell has now.
    pub(crate) fn cores(&self) -> impl Iterator<Item = Core> + Clone {
        self.cores.iter().flatten().copied()
    }

    /// Returns the claim as one that an earlier incarnation has rejected. Its memory is in use until all cores and
    /// devices are back; its cores and devices, as far as they are back, may belong to other cells by now.
    pub(crate) fn into_rejected(mut self) -> Self {
        self.state = RecordState::Rejected;
        self.resources.stage = Stage::Ending;
        self.resources.devices.clear();
        self.cores.clear();
        self
    }
}

/// The result of the validation.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct ValidatedClaims {
    /// Accepted records.
    pub(crate) accepted: Vec<Claim>,
    /// Rejected records, and those of cells that end with the previous incarnation.
    pub(crate) rejected: Vec<Claim>,
}

impl ValidatedClaims {
    /// Returns the number of rejected records that no earlier incarnation has counted.
    pub(crate) fn newly_rejected(&self) -> usize {
        self.rejected.iter().filter(|claim| claim.state == RecordState::Entered).count()
    }
}

/// Validates all ownership records.
pub(crate) fn validate(claims: Vec<Claim>, machine: &MachineResources<'_>) -> ValidatedClaims {
    let fine: Vec<bool> = claims
        .iter()
        .enumerate()
        .map(|(index, claim)| {
            let others = claims.iter().enumerate().filter(|(other, _)| *other != index);
            is_possible(claim, machine) && others.clone().all(|(_, other)| !conflict(claim, other))
        })
        .collect();
    let mut validated = ValidatedClaims::default();
    for (claim, fine) in claims.into_iter().zip(fine) {
        let continues = !matches!(claim.resources.stage, Stage::Entering | Stage::Ending);
        let list = if fine && continues { &mut validated.accepted } else { &mut validated.rejected };
        list.push(claim);
    }
    validated
}

/// Returns whether all contents of a record can be true.
fn is_possible(claim: &Claim, machine: &MachineResources<'_>) -> bool {
    let CellResources {
        memory,
        text,
        devices,
        root,
        core_pages,
        core_slots,
        activity_slots,
        link_slots,
        descriptor,
        report,
        tables,
        stage,
        ..
    } = &claim.resources;
    let cores: Vec<Core> = claim.cores().collect();
    // The first slot's core never leaves a running cell.
    let has_first = claim.cores.first().is_some_and(Option::is_some);
    let inside = |outer: &[PhysRange], inner: PhysRange| {
        let start = inner.start;
        inner.len_bytes > 0
            && start.0.is_multiple_of(PAGE_SIZE)
            && inner.len_bytes.is_multiple_of(PAGE_SIZE)
            && start.0.checked_add(inner.len_bytes).is_some()
            && outer.iter().any(|range| range.start <= start && inner.end() <= range.end())
    };
    let is_chunks =
        |range: &PhysRange| range.start.0.is_multiple_of(CHUNK) && range.len_bytes.is_multiple_of(CHUNK);
    let pages = |start: &PhysAddr, len_bytes: u64| PhysRange::new(*start, len_bytes);
    let core_bytes = u64::from(*core_slots) * PAGE_SIZE;
    let parts = [
        claim.location,
        pages(root, PAGE_SIZE),
        pages(core_pages, core_bytes),
        pages(descriptor, area_bytes((*link_slots as usize).min(MAX_LINKS))),
        pages(report, report_bytes((*core_slots as usize).min(MAX_CORES), *activity_slots as usize)),
    ];
    cores.is_empty() == (*stage == Stage::Quarantined)
        && has_first != cores.is_empty()
        && (1..=MAX_CORES).contains(&(*core_slots as usize))
        && (LEAST_LINKS..=MAX_LINKS).contains(&(*link_slots as usize))
        && claim.cores.len() <= *core_slots as usize
        && distinct(&cores, |one, other| one.id == other.id)
        && cores.iter().all(|core| machine.cores.iter().any(|at| (at.id, at.apic) == (core.id, core.apic)))
        && distinct(devices, |one, other| one == other)
        && devices.iter().all(|device| machine.devices.contains(device))
        && distinct(memory, overlap)
        && memory.iter().all(|range| is_chunks(range) && inside(machine.memory, *range))
        && text.iter().all(|text| is_chunks(text) && inside(machine.memory, *text))
        && !text.iter().any(|text| memory.iter().any(|range| overlap(range, text)))
        && parts.iter().chain(tables).all(|part| inside(memory, *part))
        && distinct(&parts, overlap)
}

/// Returns whether two records claim the same resource, or one cell could write to the other's text.
fn conflict(one: &Claim, other: &Claim) -> bool {
    let (this, that) = (&one.resources, &other.resources);
    let is_in = |text: &Option<PhysRange>, memory: &[PhysRange]| {
        text.iter().any(|text| memory.iter().any(|range| overlap(range, text)))
    };
    let in_part = |one: PhysRange, other: PhysRange| one != other && overlap(&one, &other);
    is_in(&this.text, &that.memory)
        || is_in(&that.text, &this.memory)
        || this.text.zip(that.text).is_some_and(|(one, other)| in_part(one, other))
        || this.memory.iter().any(|range| that.memory.iter().any(|at| overlap(range, at)))
        || one.cores().any(|core| other.cores().any(|at| at.id == core.id))
        || this.devices.iter().any(|device| that.devices.contains(device))
}

fn overlap(one: &PhysRange, other: &PhysRange) -> bool {
    one.start < other.end() && other.start < one.end()
}

fn distinct<T>(items: &[T], same: impl Fn(&T, &T) -> bool) -> bool {
    (1..items.len()).all(|index| !items[..index].iter().any(|before| same(before, &items[index])))
}

#[cfg(test)]
mod tests {
    use super::*;
    use isola_abi::id::{ApicId, CoreId, NodeId};
    use isola_abi::topology::CoreSite;
    use proptest::prelude::*;

    fn core(id: u32) -> Core {
        Core { id: CoreId(id), apic: ApicId(id), node: NodeId(0), site: CoreSite::alone(CoreId(id)) }
    }

    fn chunks(first: u64, count: u64) -> PhysRange {
        PhysRange::new(PhysAddr(first * CHUNK), count * CHUNK)
    }

    /// Returns a claim to `count` chunks from chunk `first` on, and to a core and a device of that number.
    fn claim(first: u64, count: u64, number: u32) -> Claim {
        let at = |page: u64| PhysAddr(first * CHUNK + page * PAGE_SIZE);
        Claim {
            location: PhysRange::new(at(0), 4 * PAGE_SIZE),
            state: RecordState::Entered,
            number: 1,
            resources: CellResources {
                stage: Stage::Entered,
                memory: alloc::vec![chunks(first, count)],
                text: None,
                root: at(4),
                entry: 0,
                core_pages: at(7),
                core_slots: 3,
                activity_slots: 32,
                link_slots: LEAST_LINKS as u32,
                descriptor: at(10),
                report: at(20),
                tables: alloc::vec![PhysRange::new(at(6), PAGE_SIZE)],
                cores: Vec::new(),
                devices: alloc::vec![DeviceAddress::Pci(0, number as u8, 0)],
                saved_state: Vec::new(),
            },
            cores: alloc::vec![Some(core(number)), None],
        }
    }

    fn validated(claims: Vec<Claim>) -> ValidatedClaims {
        let cores: Vec<Core> = (1..8).map(core).collect();
        let devices: Vec<DeviceAddress> = (0..8).map(|device| DeviceAddress::Pci(0, device, 0)).collect();
        let memory = [chunks(8, 50), chunks(60, 20)];
        validate(claims, &MachineResources { memory: &memory, cores: &cores, devices: &devices })
    }

    fn accepted(claims: Vec<Claim>) -> usize {
        validated(claims).accepted.len()
    }

    #[test]
    fn plausible_records_are_accepted() {
        assert_eq!(accepted(alloc::vec![claim(8, 10, 1), claim(18, 2, 2), claim(60, 20, 3)]), 3);
    }

    #[test]
    fn cells_that_were_entering_or_ending_are_rejected() {
        for (stage, stays) in [
            (Stage::Built, 1),
            (Stage::Entering, 0),
            (Stage::Entered, 1),
            (Stage::Ending, 0),
            (Stage::Quarantined, 1),
        ] {
            let mut claim = claim(8, 1, 1);
            claim.resources.stage = stage;
            if stage == Stage::Quarantined {
                claim.cores.clear();
            }
            assert_eq!(accepted(alloc::vec![claim]), stays, "{stage:?}");
        }
    }

    #[test]
    fn a_cell_may_own_cores_and_devices_of_an_earlier_rejected_cell() {
        let (gone, mut cell) = (claim(8, 1, 1).into_rejected(), claim(60, 1, 1));
        cell.resources.text = Some(chunks(20, 1));
        let validated = validated(alloc::vec![gone.clone(), cell.clone()]);
        assert_eq!(validated.newly_rejected(), 0, "it was counted when it was rejected");
        assert_eq!((validated.accepted, validated.rejected), (alloc::vec![cell], alloc::vec![gone]));
    }

    #[test]
    fn two_claims_to_the_same_resource_are_both_rejected() {
        let good = claim(60, 1, 5);
        for (one, other) in [
            (claim(8, 4, 1), claim(11, 4, 2)),
            (claim(8, 1, 1), claim(9, 1, 1)),
            (claim(8, 1, 1), claim(8, 1, 1)),
        ] {
            let validated = validated(alloc::vec![one, good.clone(), other]);
            assert_eq!((validated.accepted, validated.rejected.len()), (alloc::vec![good.clone()], 2));
        }
    }

    #[test]
    fn implausible_records_are_rejected() {
        let change = |change: fn(&mut Claim)| {
            let mut claim = claim(8, 2, 1);
            change(&mut claim);
            assert_eq!(accepted(alloc::vec![claim]), 0);
        };
        change(|claim| claim.resources.memory = alloc::vec![chunks(7, 2)]);
        change(|claim| claim.resources.memory = alloc::vec![chunks(57, 4)]);
        change(|claim| claim.resources.memory.push(chunks(9, 1)));
        change(|claim| claim.resources.memory.push(PhysRange::new(PhysAddr(u64::MAX - CHUNK + 1), CHUNK)));
        change(|claim| claim.resources.memory[0].len_bytes -= PAGE_SIZE);
        change(|claim| claim.resources.memory.clear());
        change(|claim| claim.resources.root = PhysAddr(60 * CHUNK));
        change(|claim| claim.resources.root = PhysAddr(u64::MAX));
        change(|claim| claim.resources.report = PhysAddr(10 * CHUNK - PAGE_SIZE));
        change(|claim| claim.resources.descriptor = claim.resources.report);
        change(|claim| claim.location.start.0 += 1);
        change(|claim| claim.cores.clear());
        change(|claim| claim.cores[1] = Some(core(1)));
        change(|claim| claim.cores[1] = Some(core(9)));
        change(|claim| claim.cores = alloc::vec![Some(Core { apic: ApicId(3), ..core(1) })]);
        change(|claim| claim.cores = alloc::vec![None, Some(core(1))]);
        change(|claim| claim.cores.resize(4, None));
        change(|claim| claim.resources.core_slots = 0);
        change(|claim| claim.resources.core_slots = MAX_CORES as u32 + 1);
        change(|claim| claim.resources.activity_slots = 1 << 20);
        change(|claim| claim.resources.activity_slots = u32::MAX);
        change(|claim| claim.resources.link_slots = 0);
        change(|claim| claim.resources.link_slots = MAX_LINKS as u32);
        change(|claim| claim.resources.link_slots = u32::MAX);
        change(|claim| claim.resources.devices.push(DeviceAddress::Mmio(PhysAddr(0))));
        change(|claim| claim.resources.tables.push(PhysRange::new(PhysAddr(0), PAGE_SIZE)));
    }

    #[test]
    fn cells_may_share_a_text_but_not_overlap_others() {
        let on = |text: PhysRange, claim: Claim| Claim {
            resources: CellResources { text: Some(text), ..claim.resources.clone() },
            ..claim
        };
        let two = |one: Claim, other: Claim| accepted(alloc::vec![one, other]);
        let (text, first, second) = (chunks(70, 2), claim(8, 1, 1), claim(9, 1, 2));
        assert_eq!(two(on(text, first.clone()), on(text, second.clone())), 2);
        assert_eq!(two(on(text, first.clone()), on(chunks(72, 1), second.clone())), 2);
        assert_eq!(two(on(text, first.clone()), on(chunks(71, 2), second.clone())), 0, "a part of it");
        assert_eq!(two(on(text, first.clone()), claim(71, 1, 2)), 0, "memory of another");
        assert_eq!(two(claim(71, 1, 2), on(text, first.clone())), 0, "memory of another");
        assert_eq!(accepted(alloc::vec![on(chunks(8, 1), first.clone())]), 0, "its own memory");
        assert_eq!(accepted(alloc::vec![on(chunks(57, 2), first.clone())]), 0, "no memory");
        let page = PhysRange::new(text.start, PAGE_SIZE);
        assert_eq!(accepted(alloc::vec![on(page, first)]), 0, "no chunk");
    }

    proptest! {
        /// For arbitrary records, no resource has two owners, and no cell owns a resource that the machine lacks.
        #[test]
        fn no_resource_has_two_owners(parts in proptest::collection::vec((0u64..70, 0u64..9, 0u32..9, 0u8..6), 0..9)) {
            let claims: Vec<Claim> = parts
                .into_iter()
                .map(|(first, count, number, twist)| {
                    let mut claim = claim(first, count, number);
                    match twist {
                        0 => claim.resources.memory.push(chunks(u64::from(number) * 9, 1)),
                        1 => claim.cores.push(Some(core(first as u32 % 9))),
                        2 => claim.resources.text = Some(chunks(60 + u64::from(number), 2)),
                        3 => claim.resources.text = Some(chunks(70, 2)),
                        _ => {}
                    }
                    claim
                })
                .collect();
            let count = claims.len();
            let validated = validated(claims);
            prop_assert_eq!(validated.accepted.len() + validated.rejected.len(), count);
            let accepted = &validated.accepted;
            let memory: Vec<PhysRange> = accepted.iter().flat_map(|claim| claim.resources.memory.clone()).collect();
            prop_assert!(distinct(&memory, overlap));
            let texts: Vec<PhysRange> = validated.accepted.iter().filter_map(|claim| claim.resources.text).collect();
            prop_assert!(!texts.iter().any(|text| memory.iter().any(|range| overlap(range, text))));
            prop_assert!(distinct(&texts, |one, other| one != other && overlap(one, other)));
            prop_assert!(memory.iter().all(|range| range.start.0 >= 8 * CHUNK && range.end().0 <= 80 * CHUNK));
            let cores: Vec<Core> = validated.accepted.iter().flat_map(Claim::cores).collect();
            prop_assert!(distinct(&cores, |one, other| one.id == other.id));
            prop_assert!(cores.iter().all(|core| (1..8).contains(&core.id.0)));
            let devices: Vec<DeviceAddress> =
                accepted.iter().flat_map(|claim| claim.resources.devices.clone()).collect();
            prop_assert!(distinct(&devices, |one, other| one == other));
        }
    }
}
