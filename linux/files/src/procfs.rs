//! `/proc` and `/sys`: their fixed parts, and the directories of processes that `linux/processes` gives.

use crate::Errno;
use crate::generated::{FixedDirectory, GeneratedDirectory, GeneratedFs, GeneratedNode};
use crate::inode::{CallerIds, LinkTarget};
use crate::metadata::InodeKind;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// The type of `/proc` in `statfs` (`PROC_SUPER_MAGIC`).
const PROC_MAGIC: u64 = 0x9fa0;
/// The type of `/sys` in `statfs` (`SYSFS_MAGIC`).
const SYS_MAGIC: u64 = 0x6265_6572;

/// The processes that `/proc` shows.
pub trait ProcessDirectories: Send + Sync {
    /// Returns the ids of the processes.
    fn ids(&self) -> Vec<u32>;

    /// Returns the directory of a process, or of a thread by its id; `None` if there is none.
    fn directory(&self, id: u32) -> Option<Arc<dyn GeneratedDirectory>>;
}

struct ProcRoot {
    fixed: FixedDirectory,
    processes: Arc<dyn ProcessDirectories>,
}

/// Returns the number that a name is, as `/proc` writes numbers.
pub fn number_of_name(name: &[u8]) -> Option<u32> {
    let text = core::str::from_utf8(name).ok()?;
    let number = text.parse().ok()?;
    (format!("{number}") == text).then_some(number)
}

fn path(text: String) -> Result<LinkTarget, Errno> {
    Ok(LinkTarget::Path(text.into_bytes()))
}

/// Creates `/proc`: the nodes of `fixed`, `self`, `thread-self` and the directories of processes.
pub fn proc_file_system(fixed: FixedDirectory, processes: Arc<dyn ProcessDirectories>) -> Arc<GeneratedFs> {
    let fixed = fixed
        .link("self", |caller: CallerIds| path(format!("{}", caller.process)))
        .link("thread-self", |caller: CallerIds| path(format!("{}/task/{}", caller.process, caller.thread)))
        .link("mounts", |_: CallerIds| path("self/mounts".into()));
    GeneratedFs::new("proc", PROC_MAGIC, Arc::new(ProcRoot { fixed, processes }))
}

impl GeneratedDirectory for ProcRoot {
    fn node(&self, name: &[u8], caller: CallerIds) -> Option<GeneratedNode> {
        if let Some(node) = self.fixed.node(name, caller) {
            return Some(node);
        }
        self.processes.directory(number_of_name(name)?).map(GeneratedNode::Directory)
    }

    fn names(&self, caller: CallerIds) -> Vec<(Vec<u8>, InodeKind)> {
        let mut names = self.fixed.names(caller);
        let directory = |id| (format!("{id}").into_bytes(), InodeKind::Directory);
        names.extend(self.processes.ids().into_iter().map(directory));
        names
    }
}

/// Creates `/sys` with the entries that the C library reads. `cores` returns the list of cores when a program asks, with a
/// line break.
pub fn sys_file_system(cores: impl Fn() -> String + Clone + Send + Sync + 'static) -> Arc<GeneratedFs> {
    let mut fixed = FixedDirectory::new();
    for name in ["online", "possible", "present"] {
        let cores = cores.clone();
        let range = move |_: CallerIds| cores().into_bytes();
        fixed = fixed.text(&format!("devices/system/cpu/{name}"), range);
    }
    fixed = fixed
        // The mount point of the groups of processes.
        .directory("fs/cgroup", Arc::new(FixedDirectory::new()))
        .constant("devices/system/node/online", "0\n")
        .constant("devices/system/node/possible", "0\n")
        .constant("kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
    GeneratedFs::with_fixed_names("sysfs", SYS_MAGIC, fixed)
}
