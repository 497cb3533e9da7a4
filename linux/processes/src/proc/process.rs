//! The directory of a process.

use crate::Errno;
use crate::calls::process_time;
use crate::process::Process;
use crate::system::System;
use alloc::format;
use alloc::string::String;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use isola_linux_abi::numbers::{
    RLIMIT_AS, RLIMIT_CORE, RLIMIT_CPU, RLIMIT_DATA, RLIMIT_FSIZE, RLIMIT_LOCKS, RLIMIT_MEMLOCK,
    RLIMIT_MSGQUEUE, RLIMIT_NICE, RLIMIT_NOFILE, RLIMIT_NPROC, RLIMIT_RSS, RLIMIT_RTPRIO, RLIMIT_RTTIME,
    RLIMIT_SIGPENDING, RLIMIT_STACK,
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
        .text("stat", of(stat))
        .text("statm", of(statm))
        .text("status", of(status))
        .text("comm", of(|_, process| name(process) + "\n"))
        .text("maps", of(maps))
        .text("limits", of(limits))
        .text("cgroup", of(|_, _| "0::/\n".into()))
        .text("mounts", of(mounts))
        .text("mountinfo", of(mount_information))
        .text("oom_score_adj", of(|_, _| "0\n".into()))
        .text("cmdline", Memory { process: process.clone(), range: |facts| facts.arguments })
        .text("environ", Memory { process: process.clone(), range: |facts| facts.environment })
        .link("exe", link(|process| Some(LinkTarget::Path(process.program.lock().path.clone()))))
        .link("cwd", link(|process| Some(LinkTarget::Location(view(process)?.working_directory()))))
        .link("root", link(|process| Some(LinkTarget::Location(view(process)?.root()))))
        .directory("fd", Arc::new(Descriptors { process: process.clone() }))
        .directory("task", Arc::new(Tasks { system: Arc::downgrade(system), process: process.clone() }));
    Arc::new(directory)
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

/// Bytes of a process's memory.
struct Memory {
    process: Arc<Process>,
    range: fn(&crate::process::ProgramFacts) -> (u64, u64),
}

impl GeneratedText for Memory {
    fn text(&self, _: CallerIds) -> Result<Vec<u8>, Errno> {
        let facts = self.process.program.lock().clone();
        let (start, end) = (self.range)(&facts);
        let Some(memory) = facts.memory else { return Ok(Vec::new()) };
        let mut bytes = Vec::new();
        // Pages that are not in memory end the text: a read of this file does not wait.
        let mut address = start;
        while address < end {
            let len = (4096 - address % 4096).min(end - address) as usize;
            let Some(part) = memory.try_part(address, len, isola_user_mode::Access::Read) else { break };
            let mut piece = alloc::vec![0; len];
            part.frame.read(part.offset, &mut piece);
            bytes.extend(piece);
            address += len as u64;
        }
        Ok(bytes)
    }
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
}

/// The threads of a process.
struct Tasks {
    system: Weak<System>,
    process: Arc<Process>,
}

impl GeneratedDirectory for Tasks {
    fn node(&self, name: &[u8], _: CallerIds) -> Option<GeneratedNode> {
        let thread = self.process.thread(number_of_name(name)?)?;
        let shown = move |_: CallerIds| {
            let mut name = thread.name.lock().clone();
            name.push(b'\n');
            name
        };
        let system = self.system.upgrade()?;
        let process = self.process.clone();
        let stat = Text { system: Arc::downgrade(&system), process, text: stat };
        let directory = FixedDirectory::new().text("comm", shown).text("stat", stat);
        Some(GeneratedNode::Directory(Arc::new(directory)))
    }

    fn names(&self, _: CallerIds) -> Vec<(Vec<u8>, InodeKind)> {
        let name = |tid: u32| (format!("{tid}").into_bytes(), InodeKind::Directory);
        self.process.threads().iter().map(|thread| name(thread.tid())).collect()
    }
}

fn view(process: &Process) -> Option<Arc<View>> {
    process.view.lock().as_ref().and_then(Weak::upgrade)
}

fn memory(process: &Process) -> Option<Arc<ProcessMemory>> {
    process.program.lock().memory.clone()
}

fn name(process: &Process) -> String {
    let threads = process.threads();
    let name = threads.first().map(|thread| thread.name.lock().clone()).unwrap_or_default();
    String::from_utf8_lossy(&name).into_owned()
}

/// Returns the letter and the word of a process's state.
fn state(system: &System, process: &Process) -> (char, &'static str) {
    let family = system.family.lock();
    match () {
        () if family.is_zombie(process.pid) => ('Z', "zombie"),
        () if family.is_stopped(process.pid) => ('T', "stopped"),
        () => ('S', "sleeping"),
    }
}

fn stat(system: &System, process: &Process) -> String {
    let (letter, _) = state(system, process);
    let (parent, group, session) = {
        let family = system.family.lock();
        let pid = process.pid;
        (family.parent(pid), family.group(pid).unwrap_or(0), family.session(pid).unwrap_or(0))
    };
    let tick = 1_000_000_000 / crate::exec::TICKS_PER_SECOND;
    let time = process_time(system, process);
    let children = system.family.lock().children_time(process.pid);
    let usage = memory(process).map(|memory| memory.usage());
    let (mapped, resident) = usage.map_or((0, 0), |usage| (usage.mapped * 4096, usage.resident.total()));
    let terminal = system.terminals.of_session(session);
    let (terminal, foreground) = terminal
        .map_or((0, -1), |terminal| (terminal.device().encoded() as i64, i64::from(terminal.session().1)));
    format!(
        "{} ({}) {letter} {parent} {group} {session} {terminal} {foreground} 4194304 0 0 0 0 {} {} {} {} 20 0 {} 0 {} {mapped} {resident} \
         18446744073709551615 0 0 0 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n",
        process.pid,
        name(process),
        time.user_ns / tick,
        time.system_ns / tick,
        children.user_ns / tick,
        children.system_ns / tick,
        process.thread_count(),
        process.start_ns / tick,
    )
}

fn statm(_: &System, process: &Process) -> String {
    let Some(usage) = memory(process).map(|memory| memory.usage()) else { return "0 0 0 0 0 0 0\n".into() };
    let shared = usage.resident.total() - usage.resident.anonymous;
    format!(
        "{} {} {shared} {} 0 {} 0\n",
        usage.mapped,
        usage.resident.total(),
        usage.text,
        usage.data + usage.stack
    )
}

fn status(system: &System, process: &Process) -> String {
    let (letter, word) = state(system, process);
    let user = *process.user.lock();
    let (blocked, pending) = {
        let shared = process.signals.lock().pending.set();
        let threads = process.threads();
        let blocked = threads.first().map_or(0, |thread| thread.signals.lock().blocked.0);
        (blocked, shared.0)
    };
    let usage = memory(process).map(|memory| memory.usage());
    let kib = |pages: u64| pages * 4;
    let memory = usage.map_or_else(String::new, |usage| {
        format!(
            "VmPeak:\t{:>8} kB\nVmSize:\t{:>8} kB\nVmLck:\t{:>8} kB\nVmHWM:\t{:>8} kB\nVmRSS:\t{:>8} kB\nVmData:\t{:>8} kB\n\
             VmStk:\t{:>8} kB\nVmExe:\t{:>8} kB\n",
            kib(usage.peak_mapped),
            kib(usage.mapped),
            kib(usage.locked),
            kib(usage.peak_resident),
            kib(usage.resident.total()),
            kib(usage.data),
            kib(usage.stack),
            kib(usage.text),
        )
    });
    let cores = system.environment.core_count();
    let mask = if cores >= 64 { u64::MAX } else { (1 << cores) - 1 };
    format!(
        "Name:\t{}\nState:\t{letter} ({1})\nTgid:\t{2}\nPid:\t{2}\nPPid:\t{3}\nTracerPid:\t0\nUid:\t{4}\t{5}\t{6}\t{7}\n\
         Gid:\t0\t0\t0\t0\nFDSize:\t64\nGroups:\t\n{memory}Threads:\t{8}\nSigQ:\t0/4096\nShdPnd:\t{pending:016x}\n\
         SigBlk:\t{blocked:016x}\nNoNewPrivs:\t0\nSeccomp:\t0\nCpus_allowed:\t{mask:x}\nCpus_allowed_list:\t0-{9}\n",
        name(process),
        word,
        process.pid,
        system.family.lock().parent(process.pid),
        user.real,
        user.effective,
        user.saved,
        user.files,
        process.thread_count(),
        cores.saturating_sub(1),
    )
}

fn maps(_: &System, process: &Process) -> String {
    let Some(memory) = memory(process) else { return String::new() };
    memory.mappings().iter().fold(String::new(), |text, mapping| text + &map_line(mapping))
}

/// Returns the line of a mapping.
fn map_line(mapping: &Mapping) -> String {
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
            let path = String::from_utf8_lossy(&object.source.path()).into_owned();
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
