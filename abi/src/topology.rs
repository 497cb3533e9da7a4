//! The location of cores in the machine, and therefore the hardware that they share: the pipelines and first caches of
//! a physical core, a last-level cache, a package.
//!
//! ```text
//!   NUMA node  >=  last-level cache  >=  physical core  >=  core
//! ```
//!
//! A *core* is a logical processor. A physical core with two threads is two cores, *siblings*. Numbers are dense within
//! the machine. All cores of a last-level cache are on one node, and siblings share a cache. If the hardware reports
//! otherwise, the cores of one reported cache or physical core on different nodes count as several caches or physical
//! cores.

use crate::id::{ApicId, CoreId, NodeId};
use serde::{Deserialize, Serialize};

/// A package (socket) of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PackageId(pub u32);

/// A last-level cache of the machine. Cores with the same id share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CacheId(pub u32);

/// A physical core of the machine. Cores with the same id are siblings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PhysicalCoreId(pub u32);

/// The location of a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CoreSite {
    /// The package.
    pub package: PackageId,
    /// The last-level cache.
    pub cache: CacheId,
    /// The physical core.
    pub physical: PhysicalCoreId,
}

impl CoreSite {
    /// Returns the location of a core on a machine without topology information: one package, one cache, no siblings.
    pub const fn alone(id: CoreId) -> Self {
        Self { package: PackageId(0), cache: CacheId(0), physical: PhysicalCoreId(id.0) }
    }
}

/// A core of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Core {
    /// The core's number in the machine.
    pub id: CoreId,
    /// The core's local APIC id.
    pub apic: ApicId,
    /// The core's NUMA node.
    pub node: NodeId,
    /// The core's location, from which its siblings and the cores at the same cache follow.
    pub site: CoreSite,
}
