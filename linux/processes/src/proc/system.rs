//! Texts of the system as a whole.

use crate::calls::{RELEASE, VERSION};
use crate::exec::TICKS_PER_SECOND;
use crate::system::System;
use alloc::format;
use alloc::string::String;

/// Nanoseconds of a second.
const SECOND: u64 = 1_000_000_000;

pub(super) fn meminfo(system: &System) -> String {
    let (total, free) = system.environment.memory();
    let lines = [
        ("MemTotal", total),
        ("MemFree", free),
        ("MemAvailable", free),
        ("Buffers", 0),
        ("Cached", 0),
        ("SwapCached", 0),
        ("SwapTotal", 0),
        ("SwapFree", 0),
        ("Shmem", 0),
        ("HugePages_Total", 0),
    ];
    lines.iter().fold(String::new(), |text, (name, bytes)| {
        text + &format!("{:<16}{:>8} kB\n", format!("{name}:"), bytes / 1024)
    })
}

pub(super) fn cpuinfo(system: &System) -> String {
    let mhz = system.environment.cycles().1 / 1_000_000;
    (0..system.environment.core_count()).fold(String::new(), |text, core| {
        text + &format!(
            "processor\t: {core}\nvendor_id\t: unknown\nmodel name\t: x86-64\ncpu MHz\t\t: {mhz}.000\nphysical id\t: 0\n\
             siblings\t: {0}\ncore id\t\t: {core}\ncpu cores\t: {0}\nflags\t\t: fpu tsc msr cx8 apic cmov mmx fxsr sse sse2 \
             syscall nx lm\n\n",
            system.environment.core_count()
        )
    })
}

pub(super) fn stat(system: &System) -> String {
    let ticks = system.environment.monotonic_ns() / (SECOND / TICKS_PER_SECOND);
    let cores = system.environment.core_count();
    let line = |name: &str, cores: usize| format!("{name} 0 0 0 {} 0 0 0 0 0 0\n", ticks * cores as u64);
    let mut text = line("cpu ", cores);
    (0..cores).for_each(|core| text += &line(&format!("cpu{core}"), 1));
    let started = system.environment.unix_ns() / SECOND - system.environment.monotonic_ns() / SECOND;
    let processes = system.family.lock().processes().count();
    text + &format!("ctxt 0\nbtime {started}\nprocesses {processes}\nprocs_running 1\nprocs_blocked 0\n")
}

pub(super) fn loadavg(system: &System) -> String {
    let count = system.family.lock().processes().count();
    format!("0.00 0.00 0.00 1/{count} {count}\n")
}

pub(super) fn uptime(system: &System) -> String {
    let hundredths = system.environment.monotonic_ns() / (SECOND / 100);
    let time = format!("{}.{:02}", hundredths / 100, hundredths % 100);
    format!("{time} {time}\n")
}

pub(super) fn version(_: &System) -> String {
    format!("Linux version {RELEASE} ({VERSION})\n")
}

pub(super) fn host_name(system: &System) -> String {
    format!("{}\n", system.host_name.lock())
}
