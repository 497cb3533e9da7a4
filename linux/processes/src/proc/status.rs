//! The texts of `/proc/PID` about a process's state, times and memory.

use super::process::{map_line, memory, name};
use crate::calls::process_time;
use crate::process::Process;
use crate::signals::{Handler, Signal, SignalSet};
use crate::system::System;
use crate::thread::thread_time;
use crate::thread_state::ThreadState;
use alloc::format;
use alloc::string::String;
use core::sync::atomic::Ordering;
use isola_abi::query::ProcessState;
use isola_linux_memory::MappingUsage;

/// The start of Linux's priorities of ordinary processes in `/proc/PID/stat`.
const ORDINARY_PRIORITY: i32 = 20;

/// Returns the letter and the word of the state of a process, or of one of its threads.
fn state(system: &System, process: &Process, thread: Option<&ThreadState>) -> (char, &'static str) {
    let (is_zombie, is_stopped) = {
        let family = system.family.lock();
        (family.is_zombie(process.pid), family.is_stopped(process.pid))
    };
    let is_runnable = || match thread {
        Some(thread) => thread.is_runnable(),
        None => process.threads().iter().any(|thread| thread.is_runnable()),
    };
    let is_traced = || match thread {
        Some(thread) => thread.tracing.is_stopped(),
        None => process.threads().first().is_some_and(|first| first.tracing.is_stopped()),
    };
    match () {
        () if is_zombie => ('Z', "zombie"),
        () if is_stopped => ('T', "stopped"),
        () if is_traced() => ('t', "tracing stop"),
        () if is_runnable() => ('R', "running"),
        () => ('S', "sleeping"),
    }
}

/// Returns the name of a thread, or that of the process.
fn shown_name(process: &Process, thread: Option<&ThreadState>) -> String {
    match thread {
        Some(thread) => String::from_utf8_lossy(&thread.name.lock()).into_owned(),
        None => name(process),
    }
}

/// Returns the state of a process.
pub(crate) fn process_state(system: &System, process: &Process) -> ProcessState {
    match state(system, process, None).0 {
        'Z' => ProcessState::Zombie,
        'T' | 't' => ProcessState::Stopped,
        'R' => ProcessState::Running,
        _ => ProcessState::Sleeping,
    }
}

/// Returns the memory that a process has mapped and in use, in bytes.
pub(crate) fn resident_bytes(process: &Process) -> u64 {
    memory(process).map_or(0, |memory| memory.usage().resident.total() * 4096)
}

pub(super) fn stat(system: &System, process: &Process, thread: Option<&ThreadState>) -> String {
    let (letter, _) = state(system, process, thread);
    let (parent, group, session, children) = {
        let family = system.family.lock();
        let pid = process.pid;
        let (group, session) = (family.group(pid).unwrap_or(0), family.session(pid).unwrap_or(0));
        (family.parent(pid), group, session, family.children_time(pid))
    };
    let tick = 1_000_000_000 / crate::exec::TICKS_PER_SECOND;
    let time = match thread {
        Some(thread) => thread_time(thread, system.environment.cycles()),
        None => process_time(system, process),
    };
    let usage = memory(process).map(|memory| memory.usage()).unwrap_or_default();
    let (policy, nice) = (process.control.policy(), process.control.nice());
    let priority = if policy.is_real_time() { -1 - policy.priority as i32 } else { ORDINARY_PRIORITY + nice };
    let terminal = system.terminals.of_session(session);
    let (terminal, foreground) = terminal
        .map_or((0, -1), |terminal| (terminal.device().encoded() as i64, i64::from(terminal.session().1)));
    let first = process.threads();
    let core =
        thread.or(first.first().map(|first| &**first)).map_or(0, |one| one.core.load(Ordering::Relaxed));
    format!(
        "{} ({}) {letter} {parent} {group} {session} {terminal} {foreground} 4194304 {} 0 0 0 {} {} {} {} {priority} {nice} {} 0 {} {} {} {} \
         0 0 0 0 0 0 0 0 0 0 0 0 17 {core} {} {} 0 0 0 0 0 0 0 0 0 0 0\n",
        thread.map_or(process.pid, ThreadState::tid),
        shown_name(process, thread),
        process.control.faults.load(Ordering::Relaxed),
        time.user_ns / tick,
        time.system_ns / tick,
        children.user_ns / tick,
        children.system_ns / tick,
        process.thread_count().max(1),
        process.start_ns / tick,
        usage.mapped * 4096,
        usage.resident.total(),
        u64::MAX,
        policy.priority,
        policy.number,
    )
}

pub(super) fn statm(_: &System, process: &Process) -> String {
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

/// Returns the signals of a process that are ignored, and those with a handler.
fn actions(process: &Process) -> (SignalSet, SignalSet) {
    let signals = process.signals.lock();
    let (mut ignored, mut caught) = (SignalSet::EMPTY, SignalSet::EMPTY);
    for signal in (1..=64).filter_map(|number| Signal::from_number(number).ok()) {
        match signals.actions.get(signal).handler {
            Handler::Ignore => ignored = ignored | SignalSet::of(signal),
            Handler::Function(_) => caught = caught | SignalSet::of(signal),
            Handler::Default => {}
        }
    }
    (ignored, caught)
}

pub(super) fn status(system: &System, process: &Process, thread: Option<&ThreadState>) -> String {
    let (letter, word) = state(system, process, thread);
    let threads = process.threads();
    let shown = thread.or(threads.first().map(|first| &**first));
    let shared = process.signals.lock().pending.set();
    let (blocked, pending) = shown.map_or((SignalSet::EMPTY, SignalSet::EMPTY), |thread| {
        let signals = thread.signals.lock();
        (signals.blocked, signals.pending.set())
    });
    let (ignored, caught) = actions(process);
    let user = *process.user.lock();
    let credentials = process.credentials.lock().clone();
    let group = credentials.as_ref().map(|credentials| credentials.group).unwrap_or_default();
    let groups = credentials.iter().flat_map(|credentials| credentials.groups.iter());
    let groups = groups.fold(String::new(), |text, group| text + &format!("{group} "));
    let capabilities = credentials.as_ref().map(|credentials| credentials.capabilities);
    let [inheritable, permitted, effective] =
        capabilities.map_or([0; 3], |held| [held.inheritable, held.permitted, held.effective]);
    let kib = |pages: u64| pages * 4;
    let usage = memory(process).map(|memory| memory.usage());
    let memory = usage.map_or_else(String::new, |usage| {
        let lines = [
            ("VmPeak", usage.peak_mapped),
            ("VmSize", usage.mapped),
            ("VmLck", usage.locked),
            ("VmPin", 0),
            ("VmHWM", usage.peak_resident),
            ("VmRSS", usage.resident.total()),
            ("RssAnon", usage.resident.anonymous),
            ("RssFile", usage.resident.file),
            ("RssShmem", usage.resident.shared_memory),
            ("VmData", usage.data),
            ("VmStk", usage.stack),
            ("VmExe", usage.text),
            ("VmSwap", 0),
        ];
        lines
            .iter()
            .fold(String::new(), |text, (name, pages)| text + &format!("{name}:\t{:>8} kB\n", kib(*pages)))
    });
    let cores = system.environment.cores();
    let mask = shown.map_or(cores, |thread| match thread.allowed_cores.load(Ordering::Relaxed) & cores {
        0 => cores,
        allowed => allowed,
    });
    let ids = |ids: crate::credentials::Ids| {
        format!("{}\t{}\t{}\t{}", ids.real, ids.effective, ids.saved, ids.files)
    };
    let tid = thread.map_or(process.pid, ThreadState::tid);
    let tracer = match thread {
        Some(thread) => thread.tracing.tracer(),
        None => process.tracer.lock().upgrade(),
    };
    format!(
        "Name:\t{}\nUmask:\t0022\nState:\t{letter} ({word})\nTgid:\t{}\nNgid:\t0\nPid:\t{tid}\nPPid:\t{}\nTracerPid:\t{}\n\
         Uid:\t{}\nGid:\t{}\nFDSize:\t64\nGroups:\t{groups}\n{memory}Threads:\t{}\nSigQ:\t0/4096\nSigPnd:\t{:016x}\n\
         ShdPnd:\t{:016x}\nSigBlk:\t{:016x}\nSigIgn:\t{:016x}\nSigCgt:\t{:016x}\nCapInh:\t{:016x}\nCapPrm:\t{:016x}\n\
         CapEff:\t{:016x}\nNoNewPrivs:\t{}\nSeccomp:\t0\nCpus_allowed:\t{mask:x}\nCpus_allowed_list:\t{}\n\
         voluntary_ctxt_switches:\t{}\nnonvoluntary_ctxt_switches:\t0\n",
        shown_name(process, thread),
        process.pid,
        system.family.lock().parent(process.pid),
        tracer.map_or(0, |tracer| tracer.pid),
        ids(user),
        ids(group),
        process.thread_count(),
        pending.0,
        shared.0,
        blocked.0,
        ignored.0,
        caught.0,
        inheritable,
        permitted,
        effective,
        u8::from(credentials.is_some_and(|credentials| credentials.no_new_privileges)),
        list_of(mask),
        shown.map_or(0, |thread| thread.meter.turns()),
    )
}

/// Returns the set bits of a mask as a list of ranges: `0-2,5`.
pub(super) fn list_of(mask: u64) -> String {
    let is_set = |bit: u32| bit < 64 && mask >> bit & 1 != 0;
    let mut text = String::new();
    let mut bit = 0;
    while bit < 64 {
        if !is_set(bit) {
            bit += 1;
            continue;
        }
        let first = bit;
        while is_set(bit) {
            bit += 1;
        }
        let comma = if text.is_empty() { "" } else { "," };
        text += &match bit - first {
            1 => format!("{comma}{first}"),
            _ => format!("{comma}{first}-{}", bit - 1),
        };
    }
    text
}

/// The time on a core, the time of waits for a core (not measured), and the number of turns.
pub(super) fn schedule_statistics(
    system: &System,
    process: &Process,
    thread: Option<&ThreadState>,
) -> String {
    let time = match thread {
        Some(thread) => thread_time(thread, system.environment.cycles()),
        None => process_time(system, process),
    };
    let turns: u64 = match thread {
        Some(thread) => thread.meter.turns(),
        None => process.threads().iter().map(|thread| thread.meter.turns()).sum(),
    };
    format!("{} 0 {turns}\n", time.user_ns + time.system_ns)
}

pub(super) fn schedule(system: &System, process: &Process) -> String {
    let time = process_time(system, process);
    let total_ns = time.user_ns + time.system_ns;
    let turns: u64 = process.threads().iter().map(|thread| thread.meter.turns()).sum();
    format!(
        "{} ({}, #threads: {})\nse.sum_exec_runtime : {}.{:06}\nse.load.weight : {}\nnr_switches : {turns}\npolicy : {}\nprio : {}\n",
        name(process),
        process.pid,
        process.thread_count(),
        total_ns / 1_000_000,
        total_ns % 1_000_000,
        process.control.weight(),
        process.control.policy().number,
        120 + process.control.nice(),
    )
}

/// `rchar` to `syscw` count calls that read and write; the devices' bytes are not counted by process.
/// Reads and writes of block devices are those of the process's activity. Written blocks count when they are written
/// back.
pub(super) fn file_use(system: &System, process: &Process) -> String {
    let own = process.control.account().and_then(|account| account.own_activity());
    let moved = own.map(|own| system.environment.activities().traffic(Some(own))).unwrap_or_default();
    let used = &process.control.files;
    let [read, written, reads, writes] = [&used.read_bytes, &used.written_bytes, &used.reads, &used.writes]
        .map(|counter| counter.load(Ordering::Relaxed));
    format!(
        "rchar: {read}\nwchar: {written}\nsyscr: {reads}\nsyscw: {writes}\nread_bytes: {}\nwrite_bytes: {}\n\
         cancelled_write_bytes: 0\n",
        moved.read_bytes, moved.written_bytes
    )
}

/// Appends the lines of `smaps` about sizes. A process may have thousands of mappings: the numbers are written without the
/// standard library's formatting, which takes ten times as long.
fn append_sizes(text: &mut String, size: u64, usage: MappingUsage, locked: u64) {
    let lines = [
        ("Size:", size),
        ("Rss:", usage.resident),
        // Pages that relatives share count for each of them.
        ("Pss:", usage.resident),
        ("Shared_Clean:", usage.object),
        ("Shared_Dirty:", usage.shared),
        ("Private_Clean:", 0),
        ("Private_Dirty:", usage.private),
        ("Referenced:", usage.resident),
        ("Anonymous:", usage.private + usage.shared),
        ("Swap:", 0),
        ("Locked:", locked),
    ];
    let skipped = usize::from(size == 0);
    for (name, pages) in &lines[skipped..] {
        append_kib(text, name, pages * 4);
    }
}

/// Appends a line: the name in 16 columns, and the number in 8.
fn append_kib(text: &mut String, name: &str, kib: u64) {
    const SPACES: &str = "                ";
    let mut digits = [b' '; 20];
    let mut first = digits.len();
    let mut rest = kib;
    loop {
        first -= 1;
        digits[first] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    let shown = &digits[first.min(digits.len() - 8)..];
    text.push_str(name);
    text.push_str(&SPACES[name.len().min(SPACES.len())..]);
    text.push_str(core::str::from_utf8(shown).unwrap_or_default());
    text.push_str(" kB\n");
}

pub(super) fn mapping_sizes(_: &System, process: &Process) -> String {
    let Some(memory) = memory(process) else { return String::new() };
    memory.mappings().iter().fold(String::new(), |mut text, mapping| {
        let usage = memory.mapping_usage(mapping);
        let locked = if mapping.attributes.locked { usage.resident } else { 0 };
        text.push_str(&map_line(mapping));
        append_sizes(&mut text, mapping.pages(), usage, locked);
        text.push_str("KernelPageSize:        4 kB\nMMUPageSize:           4 kB\nVmFlags: \n");
        text
    })
}

pub(super) fn mapping_sum(_: &System, process: &Process) -> String {
    let Some(memory) = memory(process) else { return String::new() };
    let mappings = memory.mappings();
    let (Some(first), Some(last)) = (mappings.first(), mappings.last()) else { return String::new() };
    let mut sum = MappingUsage::default();
    let mut locked = 0;
    for mapping in &mappings {
        let usage = memory.mapping_usage(mapping);
        sum.resident += usage.resident;
        sum.private += usage.private;
        sum.shared += usage.shared;
        sum.object += usage.object;
        locked += if mapping.attributes.locked { usage.resident } else { 0 };
    }
    let mut text = format!("{:08x}-{:08x} ---p 00000000 00:00 0 [rollup]\n", first.start, last.end);
    append_sizes(&mut text, 0, sum, locked);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_written_as_the_standard_library_does() {
        for (name, kib) in [("Size:", 0), ("Private_Dirty:", 4), ("Rss:", 12_345_678), ("Pss:", u64::MAX)] {
            let mut text = String::new();
            append_kib(&mut text, name, kib);
            assert_eq!(text, format!("{name:<16}{kib:>8} kB\n"));
        }
    }

    #[test]
    fn cores_are_listed_as_ranges() {
        assert_eq!((list_of(0b1).as_str(), list_of(0b10_0111).as_str()), ("0", "0-2,5"));
        assert_eq!((list_of(u64::MAX).as_str(), list_of(0).as_str()), ("0-63", ""));
        assert_eq!(list_of(1 << 63 | 0b1010), "1,3,63");
    }
}
