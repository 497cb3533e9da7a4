//! The directory of a process.

use super::status;
use crate::Errno;
use crate::process::Process;
use crate::system::System;
use crate::thread_state::ThreadState;
use alloc::format;
use alloc::string::String;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use isola_linux_abi::numbers::{
    CAP_SYS_RESOURCE, RLIMIT_AS, RLIMIT_CORE, RLIMIT_CPU, RLIMIT_DATA, RLIMIT_FSIZE, RLIMIT_LOCKS,
    RLIMIT_MEMLOCK, RLIMIT_MSGQUEUE, RLIMIT_NICE, RLIMIT_NOFILE, RLIMIT_NPROC, RLIMIT_RSS, RLIMIT_RTPRIO,
    RLIMIT_RTTIME, RLIMIT_SIGPENDING, RLIMIT_STACK,
};
use isola_linux_files::{
    CallerIds, DescriptorTable, FixedDirectory, GeneratedDirectory, GeneratedNode, GeneratedText, InodeKind,
    LinkTarget, View, number_of_name,
};
use isola_linux_memory::{Mapping, ProcessMemory};

/// Returns the directory of a process.
pub(super) fn directory(system: &Arc<System>, process: &Arc<Process>) -> Arc<dyn GeneratedDirectory> {
    let of = |text: fn(&System, &Process) -> String| Text {
        system: Arc::downgrade(system),
        process: process.clone(),
        text,
    };
    let link = |link: fn(&Process) -> Option<LinkTarget>| {
        let process = process.clone();
        move |_: CallerIds| link(&process).ok_or(Errno::ENOENT)
    };
    let directory = FixedDirectory::new()
        .owned_by(owner(process))
        .text("stat", of(|system, process| status::stat(system, process, None)))
        .text("statm", of(status::statm))
        .text("status", of(|system, process| status::status(system, process, None)))
        .text("schedstat", of(|system, process| status::schedule_statistics(system, process, None)))
        .text("sched", of(status::schedule))
        .text("io", of(status::file_use))
        .text("wchan", of(|_, _| "0".into()))
        .text("smaps", of(status::mapping_sizes))
        .text("smaps_rollup", of(status::mapping_sum))
        .text("comm", of(|_, process| name(process) + "\n"))
        .text("maps", of(maps))
        .text("limits", of(limits))
        .text("cgroup", of(|_, process| format!("0::{}\n", process.control.group().path())))
        .text("mounts", of(mounts))
        .text("mountinfo", of(mount_information))
        .text("oom_score", of(|system, process| format!("{}\n", system.out_of_memory_score(process))))
        .text("oom_score_adj", Adjustment { system: Arc::downgrade(system), process: process.clone() })
        .text("cmdline", CommandLine(process.clone()))
        .text("environ", Environment(process.clone()))
        .text("auxv", AuxiliaryVector(process.clone()))
        .link("exe", link(|process| process.program.lock().executable.clone()))
        .link("cwd", link(|process| Some(LinkTarget::Location(view(process)?.working_directory()))))
        .link("root", link(|process| Some(LinkTarget::Location(view(process)?.root()))))
        .directory("fd", Arc::new(Descriptors { process: process.clone() }))
        .directory("task", Arc::new(Tasks { system: Arc::downgrade(system), process: process.clone() }));
    Arc::new(directory)
}

/// Returns the owner and the group of a process's directory: the effective ids.
fn owner(process: &Process) -> (u32, u32) {
    let group = process.credentials.lock().as_ref().map_or(0, |credentials| credentials.group.effective);
    (process.user.lock().effective, group)
}

/// A text about a process.
struct Text {
    system: Weak<System>,
    process: Arc<Process>,
    text: fn(&System, &Process) -> String,
}

impl GeneratedText for Text {
    fn text(&self, _: CallerIds) -> Result<Vec<u8>, Errno> {
        let system = self.system.upgrade().ok_or(Errno::ESRCH)?;
        Ok((self.text)(&system, &self.process).into_bytes())
    }
}

/// `oom_score_adj`.
struct Adjustment {
    system: Weak<System>,
    process: Arc<Process>,
}

impl GeneratedText for Adjustment {
    fn text(&self, _: CallerIds) -> Result<Vec<u8>, Errno> {
        Ok(format!("{}\n", self.process.control.out_of_memory_adjustment()).into_bytes())
    }

    fn write(&self, bytes: &[u8], caller: CallerIds) -> Result<(), Errno> {
        let text = core::str::from_utf8(bytes).map_err(|_| Errno::EINVAL)?;
        let adjustment: i32 = text.trim().parse().map_err(|_| Errno::EINVAL)?;
        if !(-1000..=1000).contains(&adjustment) {
            return Err(Errno::EINVAL);
        }
        let system = self.system.upgrade().ok_or(Errno::ESRCH)?;
        let caller = system.family.lock().process(caller.process).ok_or(Errno::ESRCH)?;
        let credentials = caller.credentials.lock().clone().ok_or(Errno::EACCES)?;
        let is_capable = credentials.has(CAP_SYS_RESOURCE);
        if adjustment < self.process.control.out_of_memory_adjustment() && !is_capable {
            return Err(Errno::EACCES);
        }
        self.process.control.set_out_of_memory_adjustment(adjustment);
        Ok(())
    }

    fn permissions(&self) -> u32 {
        0o644
    }
}

/// The arguments of a process, or the title that it has set instead.
struct CommandLine(Arc<Process>);

impl GeneratedText for CommandLine {
    fn text(&self, _: CallerIds) -> Result<Vec<u8>, Errno> {
        Ok(command_line(&self.0))
    }
}

/// Returns the arguments of a process, each with a NUL at its end, or the title that it has set instead.
pub(crate) fn command_line(process: &Process) -> Vec<u8> {
    let facts = process.program.lock().clone();
    let Some(memory) = facts.memory else { return Vec::new() };
    let (start, end) = facts.arguments;
    let mut bytes = contents(&memory, start, end);
    if bytes.last().is_some_and(|last| *last != 0) {
        // The program has overwritten its arguments with a longer title, which continues in its environment
        // (setproctitle(3)).
        let environment_end = facts.environment.1;
        bytes.extend(contents(&memory, end, environment_end.min(end.saturating_add(LONGEST_TITLE))));
        let len = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        bytes.truncate(len);
    }
    bytes
}

/// The longest part of a title behind the arguments, in bytes.
const LONGEST_TITLE: u64 = 4096;

/// The environment of a process at its start.
struct Environment(Arc<Process>);

/// The auxiliary vector of a process, by which debuggers find the addresses of its program.
struct AuxiliaryVector(Arc<Process>);

impl GeneratedText for AuxiliaryVector {
    fn text(&self, _: CallerIds) -> Result<Vec<u8>, Errno> {
        let facts = self.0.program.lock().clone();
        let (start, end) = facts.auxiliary;
        Ok(facts.memory.map_or_else(Vec::new, |memory| contents(&memory, start, end)))
    }

    fn permissions(&self) -> u32 {
        0o400
    }
}

impl GeneratedText for Environment {
    fn text(&self, _: CallerIds) -> Result<Vec<u8>, Errno> {
        let facts = self.0.program.lock().clone();
        let (start, end) = facts.environment;
        Ok(facts.memory.map_or_else(Vec::new, |memory| contents(&memory, start, end)))
    }
}

/// Returns the bytes of a part of a process's memory. Pages that are not in memory end them: a read of these files does
/// not wait.
fn contents(memory: &ProcessMemory, start: u64, end: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut address = start;
    while address < end {
        let len = (4096 - address % 4096).min(end - address) as usize;
        let Some(part) = memory.try_part(address, len, isola_user_mode::Access::Read) else { break };
        let mut piece = alloc::vec![0; len];
        part.frame.read(part.offset, &mut piece);
        bytes.extend(piece);
        address += len as u64;
    }
    bytes
}

/// The open files of a process.
struct Descriptors {
    process: Arc<Process>,
}

impl Descriptors {
    fn table(&self) -> Option<Arc<DescriptorTable>> {
        self.process.files.lock().as_ref().and_then(Weak::upgrade)
    }
}

impl GeneratedDirectory for Descriptors {
    fn node(&self, name: &[u8], _: CallerIds) -> Option<GeneratedNode> {
        let descriptor = number_of_name(name)? as i32;
        self.table()?.get_any(descriptor).ok()?;
        let table = self.table()?;
        let target = move |_: CallerIds| -> Result<LinkTarget, Errno> {
            {
                let file = table.get_any(descriptor).map_err(|_| Errno::ENOENT)?;
                Ok(match file.location() {
                    Some(location) => LinkTarget::Location(location.clone()),
                    None => LinkTarget::Object(file),
                })
            }
        };
        Some(GeneratedNode::Link(Arc::new(target)))
    }

    fn names(&self, _: CallerIds) -> Vec<(Vec<u8>, InodeKind)> {
        let table = self.table();
        let descriptors = table.map_or_else(Vec::new, |table| table.descriptors());
        descriptors
            .into_iter()
            .map(|descriptor| (format!("{descriptor}").into_bytes(), InodeKind::Symlink))
            .collect()
    }

    fn permissions(&self) -> u32 {
        0o500
    }

    fn owner(&self) -> (u32, u32) {
        owner(&self.process)
    }
}

/// The threads of a process.
struct Tasks {
    system: Weak<System>,
    process: Arc<Process>,
}

impl GeneratedDirectory for Tasks {
    fn node(&self, name: &[u8], _: CallerIds) -> Option<GeneratedNode> {
        let thread = self.process.thread(number_of_name(name)?)?;
        let thread_state = thread.clone();
        let shown = move |_: CallerIds| {
            let mut name = thread.name.lock().clone();
            name.push(b'\n');
            name
        };
        let system = self.system.upgrade()?;
        let process = self.process.clone();
        let of = |text: fn(&System, &Process, Option<&ThreadState>) -> String| {
            let (system, process, thread) = (Arc::downgrade(&system), process.clone(), thread_state.clone());
            move |_: CallerIds| -> Vec<u8> {
                let system = system.upgrade();
                system.map_or_else(Vec::new, |system| text(&system, &process, Some(&thread)).into_bytes())
            }
        };
        let directory = FixedDirectory::new()
            .owned_by(owner(&self.process))
            .text("comm", shown)
            .text("stat", of(status::stat))
            .text("status", of(status::status))
            .text("schedstat", of(status::schedule_statistics));
        Some(GeneratedNode::Directory(Arc::new(directory)))
    }

    fn names(&self, _: CallerIds) -> Vec<(Vec<u8>, InodeKind)> {
        let name = |tid: u32| (format!("{tid}").into_bytes(), InodeKind::Directory);
        self.process.threads().iter().map(|thread| name(thread.tid())).collect()
    }

    fn owner(&self) -> (u32, u32) {
        owner(&self.process)
    }
}

fn view(process: &Process) -> Option<Arc<View>> {
    process.view.lock().as_ref().and_then(Weak::upgrade)
}

pub(super) fn memory(process: &Process) -> Option<Arc<ProcessMemory>> {
    process.program.lock().memory.clone()
}

pub(crate) fn name(process: &Process) -> String {
    let threads = process.threads();
    let name = match threads.first() {
        Some(thread) => thread.name.lock().clone(),
        // It has ended, and its parent has not waited for it.
        None => process.program.lock().name.clone(),
    };
    String::from_utf8_lossy(&name).into_owned()
}

fn maps(_: &System, process: &Process) -> String {
    let Some(memory) = memory(process) else { return String::new() };
    memory.mappings().iter().fold(String::new(), |text, mapping| text + &map_line(mapping))
}

/// Returns the line of a mapping.
pub(super) fn map_line(mapping: &Mapping) -> String {
    let letter = |has: bool, letter: char| if has { letter } else { '-' };
    let protection = mapping.protection;
    let rights: String = [
        letter(protection.readable, 'r'),
        letter(protection.writable, 'w'),
        letter(protection.executable, 'x'),
        if mapping.is_shared { 's' } else { 'p' },
    ]
    .iter()
    .collect();
    let (offset, device, inode, path) = match &mapping.object {
        Some(object) => {
            let (device, inode) = object.source.identity();
            let path = String::from_utf8_lossy(&object.path()).into_owned();
            (object.first * 4096, device, inode, path)
        }
        None => (0, 0, 0, mapping.name.clone().into_owned()),
    };
    let (major, minor) = (device >> 8 & 0xfff, device & 0xff);
    let line = format!(
        "{:08x}-{:08x} {rights} {offset:08x} {major:02x}:{minor:02x} {inode}",
        mapping.start, mapping.end
    );
    if path.is_empty() { line + " \n" } else { format!("{line:<72} {path}\n") }
}

fn limits(_: &System, process: &Process) -> String {
    let limits = process.limits.lock().clone();
    let shown = |value: u64| if value == u64::MAX { "unlimited".into() } else { format!("{value}") };
    let heading = format!("{:<26}{:<21}{:<21}{}\n", "Limit", "Soft Limit", "Hard Limit", "Units");
    [
        (RLIMIT_CPU, "Max cpu time", "seconds"),
        (RLIMIT_FSIZE, "Max file size", "bytes"),
        (RLIMIT_DATA, "Max data size", "bytes"),
        (RLIMIT_STACK, "Max stack size", "bytes"),
        (RLIMIT_CORE, "Max core file size", "bytes"),
        (RLIMIT_RSS, "Max resident set", "bytes"),
        (RLIMIT_NPROC, "Max processes", "processes"),
        (RLIMIT_NOFILE, "Max open files", "files"),
        (RLIMIT_MEMLOCK, "Max locked memory", "bytes"),
        (RLIMIT_AS, "Max address space", "bytes"),
        (RLIMIT_LOCKS, "Max file locks", "locks"),
        (RLIMIT_SIGPENDING, "Max pending signals", "signals"),
        (RLIMIT_MSGQUEUE, "Max msgqueue size", "bytes"),
        (RLIMIT_NICE, "Max nice priority", ""),
        (RLIMIT_RTPRIO, "Max realtime priority", ""),
        (RLIMIT_RTTIME, "Max realtime timeout", "us"),
    ]
    .iter()
    .fold(heading, |text, (resource, name, unit)| {
        let limit = limits.get(*resource).unwrap_or(crate::limits::Limit { soft: u64::MAX, hard: u64::MAX });
        text + &format!("{name:<26}{:<21}{:<21}{unit}\n", shown(limit.soft), shown(limit.hard))
    })
}

fn mounts(system: &System, process: &Process) -> String {
    let root = view(process).map(|view| view.root());
    system.namespace.mounts().iter().fold(String::new(), |text, mount| {
        let point = mount.point().map_or_else(|| b"/".to_vec(), |point| point.path(root.as_ref()));
        let source = String::from_utf8_lossy(&mount.source).into_owned();
        let (point, files) = (String::from_utf8_lossy(&point).into_owned(), mount.file_system());
        let access = if mount.flags.read_only { "ro" } else { "rw" };
        text + &format!("{source} {point} {} {access}{} 0 0\n", files.name(), files.options())
    })
}

fn mount_information(system: &System, process: &Process) -> String {
    let root = view(process).map(|view| view.root());
    system.namespace.mounts().iter().enumerate().fold(String::new(), |text, (index, mount)| {
        let point = mount.point().map_or_else(|| b"/".to_vec(), |point| point.path(root.as_ref()));
        let source = String::from_utf8_lossy(&mount.source).into_owned();
        let (point, files) = (String::from_utf8_lossy(&point).into_owned(), mount.file_system());
        let access = if mount.flags.read_only { "ro" } else { "rw" };
        let parent = if index == 0 { 0 } else { 1 };
        text + &format!(
            "{} {parent} 0:{} / {point} {access} - {} {source} {access}\n",
            index + 1,
            index + 1,
            files.name()
        )
    })
}
