//! The firmware's description of the machine, from ACPI or the multiprocessor table.

use super::mp_table::MpTable;
use super::start_info::StartInfo;
use crate::acpi::{Acpi, IoApicEntry, PciSegment, SoftOff};
use crate::apic::is_addressable;
use crate::memory::MemoryNodes;
use crate::memory::physical::Physical;
use crate::topology::ApicShifts;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use isola_abi::descriptor::{Core, InterruptMode};
use isola_abi::id::{ApicId, CoreId, MAX_MACHINE_CORES, NodeId};

/// The firmware's description of the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Firmware {
    /// The cores, numbered in the order of the firmware's table; at most [`MAX_MACHINE_CORES`]. In xAPIC
    /// mode without those whose APIC id exceeds 254, which no interrupt can address.
    pub cores: Vec<Core>,
    /// The I/O APICs.
    pub io_apics: Vec<IoApicEntry>,
    /// The NUMA nodes of memory.
    pub memory_nodes: MemoryNodes,
    /// The memory-mapped PCI configuration spaces.
    pub pci_segments: Vec<PciSegment>,
    /// I/O port of ACPI's timer.
    pub timer_port: Option<u16>,
    /// The write that switches the machine off.
    pub soft_off: Option<SoftOff>,
    /// Whether virtio devices may be at the addresses of the machine type microvm, although no table lists them.
    pub microvm_devices: bool,
}

impl Firmware {
    /// Reads ACPI's tables, or else the multiprocessor table. A machine without both has one core, the running one:
    /// `boot_apic`. The result contains that core in any case. `mode` is that of the local APICs. `shifts` determine siblings and cores that share a
    /// cache.
    pub fn read(
        memory: &impl Physical,
        start_info: &StartInfo,
        (boot_apic, mode): (ApicId, InterruptMode),
        shifts: &ApicShifts,
    ) -> Self {
        let acpi = start_info.rsdp.and_then(|rsdp| Acpi::read(memory, rsdp));
        let acpi = acpi.unwrap_or_else(|| {
            let table = MpTable::read(memory).unwrap_or_default();
            Acpi { processors: table.processors, io_apics: table.io_apics, ..Acpi::default() }
        });
        let processors = usable(acpi.processors, boot_apic, mode);
        let domains: BTreeSet<u32> = acpi
            .processor_domains
            .iter()
            .map(|(_, domain)| *domain)
            .chain(acpi.memory_domains.iter().map(|(_, domain)| *domain))
            .collect();
        let node = |domain: u32| NodeId(domains.range(..domain).count() as u32);
        let processors: Vec<(ApicId, NodeId)> = processors
            .into_iter()
            .map(|apic| {
                let domain = acpi.processor_domains.iter().find(|(id, _)| *id == apic);
                (apic, domain.map_or(NodeId(0), |(_, domain)| node(*domain)))
            })
            .collect();
        let cores = processors.iter().zip(shifts.sites(&processors)).enumerate();
        let cores =
            cores.map(|(index, (&(apic, node), site))| Core { id: CoreId(index as u32), apic, node, site });
        Self {
            cores: cores.collect(),
            io_apics: acpi.io_apics,
            memory_nodes: MemoryNodes::new(
                acpi.memory_domains.iter().map(|(range, domain)| (*range, node(*domain))).collect(),
            ),
            microvm_devices: acpi.hardware_reduced && acpi.pci_segments.is_empty(),
            pci_segments: acpi.pci_segments,
            timer_port: acpi.timer_port,
            soft_off: acpi.soft_off,
        }
    }
}

/// Returns the processors that can be cores, each once, among them `boot_apic`.
fn usable(mut processors: Vec<ApicId>, boot_apic: ApicId, mode: InterruptMode) -> Vec<ApicId> {
    if !processors.contains(&boot_apic) {
        processors.insert(0, boot_apic);
    }
    let mut known = BTreeSet::new();
    processors.retain(|apic| known.insert(*apic) && (*apic == boot_apic || is_addressable(mode, *apic)));
    if processors.len() > MAX_MACHINE_CORES {
        let boot = processors.iter().position(|apic| *apic == boot_apic).unwrap_or(0);
        processors.swap(0, boot);
        processors.truncate(MAX_MACHINE_CORES);
    }
    processors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::physical::fake::FakeMemory;
    use isola_abi::topology::CoreSite;
    use proptest::prelude::*;

    #[test]
    fn a_machine_without_tables_has_only_the_running_core() {
        let memory = FakeMemory::new(0, 16);
        let firmware = Firmware::read(
            &memory,
            &StartInfo::default(),
            (ApicId(7), InterruptMode::XApic),
            &ApicShifts::default(),
        );
        let id = CoreId(0);
        let core = Core { id, apic: ApicId(7), node: NodeId(0), site: CoreSite::alone(id) };
        assert_eq!(firmware.cores, [core]);
    }

    #[test]
    fn a_machine_has_at_most_256_cores_and_without_x2apic_255() {
        let listed = |count| (0..count).map(ApicId).collect::<Vec<_>>();
        let cores = |count, mode| usable(listed(count), ApicId(0), mode).len();
        assert_eq!((cores(255, InterruptMode::XApic), cores(300, InterruptMode::XApic)), (255, 255));
        assert_eq!((cores(256, InterruptMode::X2Apic), cores(257, InterruptMode::X2Apic)), (256, 256));
    }

    proptest! {
        #[test]
        fn usable_processors_are_listed_distinct_and_addressable(
            listed in prop::collection::vec(0u32..400, 0..600),
            boot in 0u32..400,
            x2apic: bool,
        ) {
            let mode = if x2apic { InterruptMode::X2Apic } else { InterruptMode::XApic };
            let listed: Vec<ApicId> = listed.into_iter().map(ApicId).collect();
            let usable = usable(listed.clone(), ApicId(boot), mode);
            let distinct: BTreeSet<ApicId> = usable.iter().copied().collect();
            prop_assert_eq!(distinct.len(), usable.len());
            prop_assert!(usable.len() <= MAX_MACHINE_CORES && distinct.contains(&ApicId(boot)));
            let others = usable.iter().filter(|apic| apic.0 != boot);
            let mut fine = others.map(|apic| listed.contains(apic) && (x2apic || apic.0 < 255));
            prop_assert!(fine.all(|fine| fine));
        }
    }
}
