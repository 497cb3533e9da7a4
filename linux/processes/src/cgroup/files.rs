//! `/sys/fs/cgroup`: a directory for each group.

use super::controllers::CONTROLLER_FILES;
use super::group::{Controller, Group};
use super::input;
use crate::Errno;
use crate::system::System;
use alloc::format;
use alloc::string::String;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use isola_linux_files::{
    CallerIds, GeneratedDirectory, GeneratedFs, GeneratedNode, GeneratedText, InodeKind,
};

/// The type of the file system in `statfs` (`CGROUP2_SUPER_MAGIC`).
const CGROUP_MAGIC: u64 = 0x6367_7270;

/// Creates the file system of groups.
pub fn cgroup_file_system(system: &Arc<System>) -> Arc<GeneratedFs> {
    let root = GroupDirectory { system: Arc::downgrade(system), group: system.root_group.clone() };
    GeneratedFs::new("cgroup2", CGROUP_MAGIC, Arc::new(root))
}

/// A file of a group.
pub(super) struct GroupFile {
    pub name: &'static str,
    /// The controller with which the group has the file; `None` for all groups.
    pub controller: Option<Controller>,
    /// Whether the root has it.
    pub on_root: bool,
    pub read: Option<fn(&System, &Arc<Group>) -> String>,
    pub write: Option<GroupWrite>,
}

/// A function that accepts the text that was written to a file of a group.
pub(super) type GroupWrite = fn(&System, &Arc<Group>, &str, CallerIds) -> Result<(), Errno>;

/// The files of every group.
const CORE_FILES: &[GroupFile] = &[
    GroupFile {
        name: "cgroup.procs",
        controller: None,
        on_root: true,
        read: Some(processes),
        write: Some(enter),
    },
    GroupFile { name: "cgroup.threads", controller: None, on_root: true, read: Some(threads), write: None },
    GroupFile {
        name: "cgroup.controllers",
        controller: None,
        on_root: true,
        read: Some(|_, group| names_of(|controller| group.controllers().contains(controller))),
        write: None,
    },
    GroupFile {
        name: "cgroup.subtree_control",
        controller: None,
        on_root: true,
        read: Some(|_, group| {
            let subtree = group.settings.lock().subtree;
            names_of(|controller| subtree.contains(controller))
        }),
        write: Some(|system, group, text, _| {
            let before = group.settings.lock().subtree;
            let has_processes =
                system.members(group).iter().any(|process| Arc::ptr_eq(&process.control.group(), group));
            group.set_subtree(input::controllers(text, before)?, has_processes)
        }),
    },
    GroupFile {
        name: "cgroup.type",
        controller: None,
        on_root: false,
        read: Some(|_, _| "domain\n".into()),
        write: None,
    },
    GroupFile {
        name: "cgroup.events",
        controller: None,
        on_root: false,
        read: Some(|system, group| {
            let populated = u8::from(!system.members(group).is_empty());
            format!("populated {populated}\nfrozen {}\n", u8::from(group.is_frozen()))
        }),
        write: None,
    },
    GroupFile {
        name: "cgroup.stat",
        controller: None,
        on_root: true,
        read: Some(|_, group| format!("nr_descendants {}\nnr_dying_descendants 0\n", group.descendants())),
        write: None,
    },
    GroupFile {
        name: "cgroup.max.depth",
        controller: None,
        on_root: true,
        read: Some(|_, group| limit(group.settings.lock().most_depth)),
        write: Some(|_, group, text, _| {
            let most = input::number_or_max(text)?;
            group.settings.lock().most_depth = most;
            Ok(())
        }),
    },
    GroupFile {
        name: "cgroup.max.descendants",
        controller: None,
        on_root: true,
        read: Some(|_, group| limit(group.settings.lock().most_descendants)),
        write: Some(|_, group, text, _| {
            let most = input::number_or_max(text)?;
            group.settings.lock().most_descendants = most;
            Ok(())
        }),
    },
    GroupFile {
        name: "cgroup.freeze",
        controller: None,
        on_root: false,
        read: Some(|_, group| format!("{}\n", u8::from(group.settings.lock().is_frozen))),
        write: Some(|system, group, text, _| {
            let is_frozen = input::number_in(text, 0, 1)? == 1;
            group.settings.lock().is_frozen = is_frozen;
            system.follow_group(group);
            Ok(())
        }),
    },
    GroupFile {
        name: "cgroup.kill",
        controller: None,
        on_root: false,
        read: None,
        write: Some(|system, group, text, _| {
            input::number_in(text, 1, 1)?;
            system.kill_group(group);
            Ok(())
        }),
    },
];

/// Returns the text of a limit.
pub(super) fn limit(limit: Option<u64>) -> String {
    limit.map_or_else(|| "max\n".into(), |limit| format!("{limit}\n"))
}

fn names_of(is_shown: impl Fn(Controller) -> bool) -> String {
    let names: Vec<_> =
        Controller::ALL.into_iter().filter(|one| is_shown(*one)).map(Controller::name).collect();
    names.join(" ") + "\n"
}

fn processes(system: &System, group: &Arc<Group>) -> String {
    let members = system.members(group);
    let own = members.iter().filter(|process| Arc::ptr_eq(&process.control.group(), group));
    own.fold(String::new(), |text, process| text + &format!("{}\n", process.pid))
}

fn threads(system: &System, group: &Arc<Group>) -> String {
    let members = system.members(group);
    let own = members.iter().filter(|process| Arc::ptr_eq(&process.control.group(), group));
    let threads = own.flat_map(|process| process.threads());
    threads.fold(String::new(), |text, thread| text + &format!("{}\n", thread.tid()))
}

/// Moves the process with the written id, 0 for the caller, to the group.
fn enter(system: &System, group: &Arc<Group>, text: &str, caller: CallerIds) -> Result<(), Errno> {
    let id = match text.trim().parse().map_err(|_| Errno::EINVAL)? {
        0 => caller.process,
        id => id,
    };
    let (_, process) = {
        let family = system.family.lock();
        family.process_of_thread(id).filter(|(pid, _)| !family.is_zombie(*pid)).ok_or(Errno::ESRCH)?
    };
    system.move_process(&process, group)
}

/// The directory of a group.
struct GroupDirectory {
    system: Weak<System>,
    group: Arc<Group>,
}

impl GroupDirectory {
    fn files(&self) -> impl Iterator<Item = &'static GroupFile> {
        let (is_root, controllers) = (self.group.is_root(), self.group.controllers());
        let has = move |file: &&GroupFile| {
            (file.on_root || !is_root)
                && file.controller.is_none_or(|controller| controllers.contains(controller))
        };
        CORE_FILES.iter().chain(CONTROLLER_FILES).filter(has)
    }
}

impl GeneratedDirectory for GroupDirectory {
    fn node(&self, name: &[u8], _: CallerIds) -> Option<GeneratedNode> {
        if let Some(file) = self.files().find(|file| file.name.as_bytes() == name) {
            let text = GroupText { system: self.system.clone(), group: self.group.clone(), file };
            return Some(GeneratedNode::Text(Arc::new(text)));
        }
        let group = self.group.child(name)?;
        Some(GeneratedNode::Directory(Arc::new(Self { system: self.system.clone(), group })))
    }

    fn names(&self, _: CallerIds) -> Vec<(Vec<u8>, InodeKind)> {
        let files = self.files().map(|file| (file.name.as_bytes().to_vec(), InodeKind::File));
        let groups = self.group.child_names().into_iter().map(|name| (name, InodeKind::Directory));
        files.chain(groups).collect()
    }

    fn permissions(&self) -> u32 {
        0o755
    }

    fn make_directory(&self, name: &[u8]) -> Result<(), Errno> {
        if self.files().any(|file| file.name.as_bytes() == name) {
            return Err(Errno::EEXIST);
        }
        self.group.add(name).map(|_| ())
    }

    fn remove_directory(&self, name: &[u8]) -> Result<(), Errno> {
        let system = self.system.upgrade().ok_or(Errno::ENODEV)?;
        self.group.remove(name, |group| !system.members(group).is_empty())
    }
}

/// The text of a file of a group.
struct GroupText {
    system: Weak<System>,
    group: Arc<Group>,
    file: &'static GroupFile,
}

impl GeneratedText for GroupText {
    fn text(&self, _: CallerIds) -> Result<Vec<u8>, Errno> {
        let system = self.system.upgrade().ok_or(Errno::ENODEV)?;
        let read = self.file.read.ok_or(Errno::EINVAL)?;
        Ok(read(&system, &self.group).into_bytes())
    }

    fn write(&self, bytes: &[u8], caller: CallerIds) -> Result<(), Errno> {
        let system = self.system.upgrade().ok_or(Errno::ENODEV)?;
        let text = core::str::from_utf8(bytes).map_err(|_| Errno::EINVAL)?;
        match self.file.write {
            Some(write) => write(&system, &self.group, text, caller),
            // A process is a member as a whole.
            None if self.file.name == "cgroup.threads" => Err(Errno::EOPNOTSUPP),
            None => Err(Errno::EINVAL),
        }
    }

    fn permissions(&self) -> u32 {
        match (self.file.read.is_some(), self.file.write.is_some()) {
            (true, true) => 0o644,
            (false, _) => 0o200,
            (true, false) if self.file.name == "cgroup.threads" => 0o644,
            (true, false) => 0o444,
        }
    }
}
