//! Siblings and shared caches, from the bits of local APIC ids (Intel SDM 3, 10.9; AMD APM 3, E.5).
//!
//! ```text
//!   APIC id   | package | ... | last-level cache | physical core | thread |
//!                       ^ shift of the package   ^ of the cache  ^ of the physical core
//! ```
//!
//! The processor reports the bits of each level, for all processors of the machine alike. The report is not trusted: a
//! level whose bits are out of order takes those of its neighbour, and cores of different NUMA nodes share neither a
//! cache nor a physical core, whatever their ids are.

use crate::cpu::{self, Cpuid};
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use isola_abi::id::{ApicId, NodeId};
use isola_abi::topology::{CacheId, CoreSite, PackageId, PhysicalCoreId};

/// Limit for the levels, and for the caches, that are read from a processor; none has so many.
const MAX_LEVELS: u32 = 16;

/// The shifts of an APIC id that give the numbers of its physical core, cache and package. Each is at least the
/// previous one, and below 32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ApicShifts {
    physical: u32,
    cache: u32,
    package: u32,
}

impl ApicShifts {
    /// Reads the shifts of this processor; all processors of a machine have the same.
    pub fn read() -> Self {
        Self::from_cpuid(cpu::cpuid)
    }

    fn from_cpuid(cpuid: impl Fn(u32, u32) -> Cpuid) -> Self {
        let (physical, package) = [0x1f, 0xb]
            .into_iter()
            .find_map(|leaf| levels(&cpuid, leaf))
            .or_else(|| of_amd(&cpuid))
            .unwrap_or_else(|| of_older(&cpuid));
        let package = package.min(31);
        let physical = physical.min(package);
        let cache = cache(&cpuid).unwrap_or(package).clamp(physical, package);
        Self { physical, cache, package }
    }

    /// Returns the site of each core, from its APIC id and node.
    pub fn sites(&self, cores: &[(ApicId, NodeId)]) -> Vec<CoreSite> {
        let package = |(apic, _): &(ApicId, NodeId)| apic.0 >> self.package;
        let cache = |(apic, node): &(ApicId, NodeId)| (*node, apic.0 >> self.cache);
        let physical = |(apic, node): &(ApicId, NodeId)| (*node, apic.0 >> self.physical);
        let packages: BTreeSet<_> = cores.iter().map(package).collect();
        let caches: BTreeSet<_> = cores.iter().map(cache).collect();
        let physicals: BTreeSet<_> = cores.iter().map(physical).collect();
        let site = |core| CoreSite {
            package: PackageId(packages.range(..package(core)).count() as u32),
            cache: CacheId(caches.range(..cache(core)).count() as u32),
            physical: PhysicalCoreId(physicals.range(..physical(core)).count() as u32),
        };
        cores.iter().map(site).collect()
    }
}

/// Returns the shifts of physical core and package from a leaf that lists the levels, from the threads of a physical
/// core upwards.
fn levels(cpuid: impl Fn(u32, u32) -> Cpuid, leaf: u32) -> Option<(u32, u32)> {
    const THREAD: u32 = 1;
    let (mut physical, mut package) = (0, None);
    for level in 0..MAX_LEVELS {
        let answer = cpuid(leaf, level);
        let (shift, cores, kind) = (answer.eax & 0x1f, answer.ebx & 0xffff, answer.ecx >> 8 & 0xff);
        if cores == 0 || kind == 0 {
            break;
        }
        if kind == THREAD {
            physical = shift;
        }
        package = package.max(Some(shift));
    }
    package.map(|package| (physical, package))
}

/// Returns the shifts of an AMD processor without such a leaf, from the threads per physical core and the bits per
/// package.
fn of_amd(cpuid: impl Fn(u32, u32) -> Cpuid) -> Option<(u32, u32)> {
    const TOPOLOGY_EXTENSIONS: u32 = 1 << 22;
    let sizes = cpuid(0x8000_0008, 0).ecx;
    if sizes == 0 {
        return None;
    }
    let extended = cpuid(0x8000_0001, 0).ecx & TOPOLOGY_EXTENSIONS != 0;
    let threads = if extended { (cpuid(0x8000_001e, 0).ebx >> 8 & 0xff) + 1 } else { 1 };
    let package = match sizes >> 12 & 0xf {
        0 => bits((sizes & 0xff) + 1),
        bits => bits,
    };
    Some((bits(threads), package))
}

/// Returns the shifts of an Intel processor without both, from the ids per package and the ids reserved for its cores.
fn of_older(cpuid: impl Fn(u32, u32) -> Cpuid) -> (u32, u32) {
    const SEVERAL: u32 = 1 << 28;
    let one = cpuid(1, 0);
    let several = one.edx & SEVERAL != 0;
    let package = if several { bits(one.ebx >> 16 & 0xff) } else { 0 };
    let caches = cpuid(4, 0).eax;
    let cores = if caches == 0 { package } else { bits((caches >> 26) + 1) };
    (package.saturating_sub(cores), package)
}

/// Returns the shift of the last-level cache.
fn cache(cpuid: impl Fn(u32, u32) -> Cpuid) -> Option<u32> {
    let last = |leaf| {
        let caches =
            (0..MAX_LEVELS).map(|index| cpuid(leaf, index).eax).take_while(|cache| cache & 0x1f != 0);
        caches.max_by_key(|cache| cache >> 5 & 7)
    };
    last(0x8000_001d).or_else(|| last(4)).map(|cache| bits((cache >> 14 & 0xfff) + 1))
}

/// Returns the bits that `count` numbers need.
fn bits(count: u32) -> u32 {
    count.max(1).next_power_of_two().trailing_zeros()
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    type Answers = Vec<(u32, u32, Cpuid)>;

    fn shifts(answers: &Answers) -> ApicShifts {
        ApicShifts::from_cpuid(|leaf, subleaf| {
            let known = answers.iter().find(|(l, s, _)| (*l, *s) == (leaf, subleaf));
            known.map(|(_, _, answer)| *answer).unwrap_or_default()
        })
    }

    fn answer(leaf: u32, subleaf: u32, [eax, ebx, ecx, edx]: [u32; 4]) -> (u32, u32, Cpuid) {
        (leaf, subleaf, Cpuid { eax, ebx, ecx, edx })
    }

    fn site(package: u32, cache: u32, physical: u32) -> CoreSite {
        CoreSite { package: PackageId(package), cache: CacheId(cache), physical: PhysicalCoreId(physical) }
    }

    fn on_node(node: u32, apics: impl IntoIterator<Item = u32>) -> Vec<(ApicId, NodeId)> {
        apics.into_iter().map(|apic| (ApicId(apic), NodeId(node))).collect()
    }

    #[test]
    fn shifts_come_from_the_list_of_levels() {
        // Two threads per core, eight cores, in tiles of two; all share the third-level cache.
        let answers = vec![
            answer(0x1f, 0, [1, 2, 1 << 8, 0]),
            answer(0x1f, 1, [2, 4, 3 << 8 | 1, 0]),
            answer(0x1f, 2, [4, 16, 2 << 8 | 2, 0]),
            answer(0xb, 0, [7, 1, 1 << 8, 0]),
            answer(4, 0, [1 << 5 | 1 | 1 << 14, 0, 0, 0]),
            answer(4, 1, [3 << 5 | 3 | 15 << 14, 0, 0, 0]),
            answer(4, 2, [2 << 5 | 3 | 1 << 14, 0, 0, 0]),
        ];
        assert_eq!(shifts(&answers), ApicShifts { physical: 1, cache: 4, package: 4 });
    }

    #[test]
    fn amd_caches_come_from_amd_s_own_leaf() {
        let answers = vec![
            answer(0xb, 0, [1, 2, 1 << 8, 0]),
            answer(0xb, 1, [7, 96, 2 << 8 | 1, 0]),
            answer(0x8000_001d, 0, [1 << 5 | 1 | 1 << 14, 0, 0, 0]),
            answer(0x8000_001d, 3, [0, 0, 0, 0]),
            answer(0x8000_001d, 1, [3 << 5 | 3 | 11 << 14, 0, 0, 0]),
        ];
        assert_eq!(shifts(&answers), ApicShifts { physical: 1, cache: 4, package: 7 });
    }

    #[test]
    fn processors_without_a_list_of_levels_have_shifts() {
        let amd = vec![
            answer(0x8000_0001, 0, [0, 0, 1 << 22, 0]),
            answer(0x8000_0008, 0, [0, 0, 4 << 12 | 15, 0]),
            answer(0x8000_001e, 0, [0, 1 << 8, 0, 0]),
        ];
        assert_eq!(shifts(&amd), ApicShifts { physical: 1, cache: 4, package: 4 });
        let older_amd = vec![answer(0x8000_0008, 0, [0, 0, 5, 0]), answer(1, 0, [0, 6 << 16, 0, 1 << 28])];
        assert_eq!(shifts(&older_amd), ApicShifts { physical: 0, cache: 3, package: 3 });
        let intel = vec![
            answer(1, 0, [0, 16 << 16, 0, 1 << 28]),
            answer(4, 0, [7 << 26 | 1 << 5 | 1 | 1 << 14, 0, 0, 0]),
        ];
        assert_eq!(shifts(&intel), ApicShifts { physical: 1, cache: 1, package: 4 });
        assert_eq!(shifts(&Vec::new()), ApicShifts::default(), "without any leaf, each core is a package");
    }

    #[test]
    fn siblings_caches_and_packages_are_numbered_densely() {
        let shifts = ApicShifts { physical: 1, cache: 2, package: 3 };
        let cores = on_node(0, [0, 1, 2, 6, 16, 17]);
        let expected =
            [site(0, 0, 0), site(0, 0, 0), site(0, 0, 1), site(0, 1, 2), site(1, 2, 3), site(1, 2, 3)];
        assert_eq!(shifts.sites(&cores), expected);
    }

    #[test]
    fn cores_of_different_nodes_share_neither_cache_nor_physical_core() {
        let shifts = ApicShifts { physical: 1, cache: 4, package: 4 };
        let cores = [on_node(0, [0]), on_node(1, [1])].concat();
        assert_eq!(shifts.sites(&cores), [site(0, 0, 0), site(0, 1, 1)]);
    }

    proptest! {
        /// For arbitrary reports, siblings share a cache, cores that share a cache share a node, and numbers are dense.
        #[test]
        fn arbitrary_reports_give_a_tree(
            answers in prop::collection::vec(
                (
                    prop_oneof![
                        Just(1u32), Just(4), Just(0xb), Just(0x1f), Just(0x8000_0001),
                        Just(0x8000_0008), Just(0x8000_001d), Just(0x8000_001e),
                    ],
                    0u32..4,
                    any::<[u32; 4]>(),
                ),
                0..24,
            ),
            cores in prop::collection::btree_map(any::<u32>(), 0u32..3, 1..64),
        ) {
            let answers = answers.into_iter().map(|(leaf, sub, words)| answer(leaf, sub, words)).collect();
            let shifts = shifts(&answers);
            prop_assert!(shifts.physical <= shifts.cache && shifts.cache <= shifts.package && shifts.package < 32);
            let cores: Vec<_> = cores.into_iter().map(|(apic, node)| (ApicId(apic), NodeId(node))).collect();
            let sites = shifts.sites(&cores);
            for (one, (_, node)) in sites.iter().zip(&cores) {
                for (other, (_, other_node)) in sites.iter().zip(&cores) {
                    prop_assert!(one.physical != other.physical || one.cache == other.cache);
                    prop_assert!(one.cache != other.cache || node == other_node);
                }
            }
            let kinds: [fn(&CoreSite) -> u32; 3] = [|site| site.package.0, |site| site.cache.0, |site| site.physical.0];
            for of in kinds {
                let numbers: BTreeSet<u32> = sites.iter().map(of).collect();
                prop_assert_eq!(numbers.last().map(|last| *last as usize + 1), Some(numbers.len()));
            }
        }
    }
}
