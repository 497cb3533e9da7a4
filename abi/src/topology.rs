//! Where cores stand in the machine, and so what they share: a physical core's pipelines and first caches, a last-level
//! cache, a package.
//!
//! ```text
//!   NUMA node  >=  last-level cache  >=  physical core  >=  core
//! ```
//!
//! What Isola calls a *core* is what executes: where a physical core executes two threads, it is two cores, *siblings*.
//! All numbers are dense over the machine. Cores of one last-level cache are of one node, and siblings share a cache,
//! whatever hardware says: what contradicts that is told as several.

use crate::id::CoreId;
use serde::{Deserialize, Serialize};

/// A package (socket) of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PackageId(pub u32);

/// A last-level cache of the machine, with the cores that share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CacheId(pub u32);

/// A physical core of the machine: cores with the same one are siblings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PhysicalCoreId(pub u32);

/// Where a core stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CoreSite {
    /// In which package.
    pub package: PackageId,
    /// At which last-level cache.
    pub cache: CacheId,
    /// On which physical core.
    pub physical: PhysicalCoreId,
}

impl CoreSite {
    /// The site of a core of a machine of which nothing is known: one package, one cache, no siblings.
    pub const fn alone(id: CoreId) -> Self {
        Self { package: PackageId(0), cache: CacheId(0), physical: PhysicalCoreId(id.0) }
    }
}
