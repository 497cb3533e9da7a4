//! Texts of the system as a whole.

use super::status::list_of;
use crate::calls::{RELEASE, VERSION, process_time};
use crate::environment::CoreTime;
use crate::exec::TICKS_PER_SECOND;
use crate::family::ProcessorTime;
use crate::process::Process;
use crate::system::System;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

/// Nanoseconds of a second, and of a tick.
const SECOND: u64 = 1_000_000_000;
const TICK: u64 = SECOND / TICKS_PER_SECOND;

pub(super) fn meminfo(system: &System) -> String {
    let (total, free) = system.environment.memory();
    let used = total.saturating_sub(free);
    let cached = system.environment.cached_memory();
    let (mut anonymous, mut shared, mut mapped) = (0, 0, 0);
    for process in processes(system) {
        if let Some(memory) = process.program.lock().memory.clone() {
            let resident = memory.resident();
            anonymous += resident.anonymous * 4096;
            shared += resident.shared_memory * 4096;
            mapped += (resident.file + resident.shared_memory) * 4096;
        }
    }
    let lines = [
        ("MemTotal", total),
        ("MemFree", free),
        // Pages of files that processes have mapped stay.
        ("MemAvailable", free + cached.saturating_sub(mapped)),
        ("Buffers", 0),
        ("Cached", cached),
        ("SwapCached", 0),
        ("Active", used),
        ("Inactive", 0),
        ("SwapTotal", 0),
        ("SwapFree", 0),
        ("Dirty", 0),
        ("Writeback", 0),
        ("AnonPages", anonymous),
        ("Mapped", mapped),
        ("Shmem", shared),
        ("Slab", 0),
        ("SReclaimable", 0),
        ("CommitLimit", total),
        ("Committed_AS", anonymous),
    ];
    let text = lines.iter().fold(String::new(), |text, (name, bytes)| {
        text + &format!("{:<16}{:>8} kB\n", format!("{name}:"), bytes / 1024)
    });
    text + "HugePages_Total:       0\nHugePages_Free:        0\nHugepagesize:       2048 kB\n"
}

/// The names of features of CPUID leaf 1, EDX and ECX, and of leaf 7, EBX, as Linux has them; an empty name for a feature
/// that Linux does not show.
const LEAF_1_EDX: [&str; 32] = [
    "fpu", "vme", "de", "pse", "tsc", "msr", "pae", "mce", "cx8", "apic", "", "sep", "mtrr", "pge", "mca",
    "cmov", "pat", "pse36", "pn", "clflush", "", "dts", "acpi", "mmx", "fxsr", "sse", "sse2", "ss", "ht",
    "tm", "ia64", "pbe",
];
const LEAF_1_ECX: [&str; 32] = [
    "pni",
    "pclmulqdq",
    "dtes64",
    "monitor",
    "ds_cpl",
    "vmx",
    "smx",
    "est",
    "tm2",
    "ssse3",
    "cid",
    "sdbg",
    "fma",
    "cx16",
    "xtpr",
    "pdcm",
    "",
    "pcid",
    "dca",
    "sse4_1",
    "sse4_2",
    "x2apic",
    "movbe",
    "popcnt",
    "tsc_deadline_timer",
    "aes",
    "xsave",
    "",
    "avx",
    "f16c",
    "rdrand",
    "hypervisor",
];
const LEAF_7_EBX: [&str; 32] = [
    "fsgsbase",
    "tsc_adjust",
    "sgx",
    "bmi1",
    "hle",
    "avx2",
    "fdp_excptn_only",
    "smep",
    "bmi2",
    "erms",
    "invpcid",
    "rtm",
    "cqm",
    "zero_fcs_fds",
    "",
    "rdt_a",
    "avx512f",
    "avx512dq",
    "rdseed",
    "adx",
    "smap",
    "avx512ifma",
    "",
    "clflushopt",
    "clwb",
    "intel_pt",
    "avx512pf",
    "avx512er",
    "avx512cd",
    "sha_ni",
    "avx512bw",
    "avx512vl",
];

/// Returns the processor's features by their names in Linux.
fn flags() -> String {
    use core::arch::x86_64::{__cpuid, __cpuid_count};
    let (first, seventh) = (__cpuid(1), __cpuid_count(7, 0));
    let extended = __cpuid(0x8000_0001);
    let of = |bits: u32, names: &[&'static str; 32]| -> Vec<&'static str> {
        let names = names.iter().enumerate();
        names.filter(|(bit, name)| bits >> bit & 1 != 0 && !name.is_empty()).map(|(_, name)| *name).collect()
    };
    let mut flags = of(first.edx, &LEAF_1_EDX);
    let of_extended = [(11, "syscall"), (20, "nx"), (26, "pdpe1gb"), (27, "rdtscp"), (29, "lm")];
    flags.extend(of_extended.iter().filter(|(bit, _)| extended.edx >> bit & 1 != 0).map(|(_, name)| *name));
    flags.extend(of(first.ecx, &LEAF_1_ECX));
    flags.extend(of(seventh.ebx, &LEAF_7_EBX));
    flags.join(" ")
}

/// Returns a text of CPUID: the bytes of the registers.
fn text_of(registers: &[u32]) -> String {
    let bytes: Vec<u8> =
        registers.iter().flat_map(|word| word.to_le_bytes()).take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&bytes).trim().to_string()
}

pub(super) fn cpuinfo(system: &System) -> String {
    use core::arch::x86_64::__cpuid;
    let mhz = system.environment.cycles().1 / 1_000_000;
    let vendor = __cpuid(0);
    let vendor = text_of(&[vendor.ebx, vendor.edx, vendor.ecx]);
    let brand: Vec<u32> = match __cpuid(0x8000_0000).eax {
        0x8000_0004.. => (0x8000_0002_u32..=0x8000_0004)
            .map(__cpuid)
            .flat_map(|part| [part.eax, part.ebx, part.ecx, part.edx])
            .collect(),
        _ => Vec::new(),
    };
    let brand = text_of(&brand);
    let version = __cpuid(1);
    let eax = version.eax;
    let (family, model) = (eax >> 8 & 0xf, eax >> 4 & 0xf);
    let shown_family = if family == 0xf { family + (eax >> 20 & 0xff) } else { family };
    let shown_model = if family == 6 || family == 0xf { model | (eax >> 12 & 0xf0) } else { model };
    let (cores, flags) = (system.environment.core_count(), flags());
    let line_len = (version.ebx >> 8 & 0xff) * 8;
    let times = system.environment.core_times();
    times.iter().fold(String::new(), |text, CoreTime { core, .. }| {
        text + &format!(
            "processor\t: {core}\nvendor_id\t: {vendor}\ncpu family\t: {shown_family}\nmodel\t\t: {shown_model}\n\
             model name\t: {brand}\nstepping\t: {}\ncpu MHz\t\t: {mhz}.000\nphysical id\t: 0\nsiblings\t: {cores}\n\
             core id\t\t: {core}\ncpu cores\t: {cores}\nfpu\t\t: yes\nflags\t\t: {flags}\nbogomips\t: {}.00\n\
             clflush size\t: {line_len}\ncache_alignment\t: {line_len}\n\n",
            eax & 0xf,
            mhz * 2,
        )
    })
}

fn processes(system: &System) -> Vec<Arc<Process>> {
    system.family.lock().processes().map(|(_, process)| process.clone()).collect()
}

/// Returns the number of threads that run or wait for a core, and of all threads.
fn thread_counts(system: &System) -> (usize, usize) {
    let threads: Vec<_> = processes(system).iter().flat_map(|process| process.threads()).collect();
    (threads.iter().filter(|thread| thread.is_runnable()).count(), threads.len())
}

/// Returns the load averages in hundredths.
pub(crate) fn load_averages(system: &System) -> [u64; 3] {
    system.loads.averages(thread_counts(system).0, system.environment.monotonic_ns())
}

/// Returns the times of the cores up to now: the time since a core's latest change belongs to what it does.
pub(crate) fn core_times(system: &System) -> Vec<CoreTime> {
    let elapsed = system.environment.monotonic_ns() - system.started_ns;
    let halted = system.environment.halted_cores();
    let mut times = system.environment.core_times();
    for time in &mut times {
        let rest = elapsed.saturating_sub(time.busy_ns + time.interrupt_ns + time.idle_ns);
        let is_idle = halted >> time.core & 1 != 0 && !system.loads.runs_thread(time.core);
        if is_idle { time.idle_ns += rest } else { time.busy_ns += rest }
    }
    times
}

pub(super) fn stat(system: &System) -> String {
    // The cores do not know which of their time was in ring 3: it is divided as that of the processes.
    let all = processes(system);
    let ended = system.root_group.ended_time();
    let used = all.iter().map(|process| process_time(system, process)).fold(ended, ProcessorTime::plus);
    let user_of = |busy_ns: u64| {
        let total = (used.user_ns + used.system_ns).max(1);
        (u128::from(busy_ns) * u128::from(used.user_ns) / u128::from(total)) as u64
    };
    let line = |name: &str, time: CoreTime| {
        let user_ns = user_of(time.busy_ns);
        format!(
            "{name} {} 0 {} {} 0 {} 0 0 0 0\n",
            user_ns / TICK,
            (time.busy_ns - user_ns) / TICK,
            time.idle_ns / TICK,
            time.interrupt_ns / TICK
        )
    };
    let times = core_times(system);
    let sum = times.iter().fold(CoreTime::default(), |sum, time| CoreTime {
        core: 0,
        busy_ns: sum.busy_ns + time.busy_ns,
        interrupt_ns: sum.interrupt_ns + time.interrupt_ns,
        idle_ns: sum.idle_ns + time.idle_ns,
        interrupts: sum.interrupts + time.interrupts,
    });
    let mut text = line("cpu ", sum);
    times.iter().for_each(|time| text += &line(&format!("cpu{}", time.core), *time));
    let started = (system.environment.unix_ns() - system.environment.monotonic_ns()) / SECOND;
    let (runnable, _) = thread_counts(system);
    text + &format!(
        "intr {}\nctxt {}\nbtime {started}\nprocesses {}\nprocs_running {}\nprocs_blocked 0\nsoftirq 0 0 0 0 0 0 0 0 0 0 0\n",
        sum.interrupts,
        system.loads.turns(),
        1 + system.created.load(Ordering::Relaxed),
        runnable.max(1),
    )
}

pub(super) fn loadavg(system: &System) -> String {
    let (runnable, count) = thread_counts(system);
    let [one, five, fifteen] = load_averages(system);
    let shown = |load: u64| format!("{}.{:02}", load / 100, load % 100);
    let latest = system.family.lock().latest_id();
    format!("{} {} {} {runnable}/{count} {latest}\n", shown(one), shown(five), shown(fifteen))
}

pub(super) fn uptime(system: &System) -> String {
    // A core that is not halted yet looks idle between two threads; the time never goes back for readers.
    let idle_ns: u64 = core_times(system).iter().map(|time| time.idle_ns).sum();
    let idle_ns = system.shown_idle_ns.fetch_max(idle_ns, Ordering::Relaxed).max(idle_ns);
    let shown = |ns: u64| format!("{}.{:02}", ns / SECOND, ns % SECOND / 10_000_000);
    format!("{} {}\n", shown(system.environment.monotonic_ns()), shown(idle_ns))
}

/// The counters that `vmstat` and `free` read.
pub(super) fn vmstat(system: &System) -> String {
    let (total, free) = system.environment.memory();
    let faults: u64 =
        processes(system).iter().map(|process| process.control.faults.load(Ordering::Relaxed)).sum();
    format!(
        "nr_free_pages {}\nnr_anon_pages {}\npgpgin 0\npgpgout 0\npswpin 0\npswpout 0\npgfault {faults}\npgmajfault 0\n",
        free / 4096,
        total.saturating_sub(free) / 4096,
    )
}

/// The cores of the cell, as a list.
pub(super) fn cores(system: &System) -> String {
    list_of(system.environment.cores()) + "\n"
}

pub(super) fn version(_: &System) -> String {
    format!("Linux version {RELEASE} ({VERSION})\n")
}

pub(super) fn host_name(system: &System) -> String {
    format!("{}\n", system.host_name.lock())
}
