//! Core files, as a debugger reads them.

mod common;

use common::{CODE, Cell, DATA, Steps};
use elf::ElfBytes;
use elf::abi;
use elf::endian::LittleEndian;
use elf::note::Note;
use isola_linux_abi::numbers as linux;
use isola_linux_abi::prctl;
use isola_linux_processes::signals::Signal;
use isola_linux_processes::{Errno, ExitStatus};
use isola_linux_sim::{Program, STEP_SIZE};

/// The types of notes.
const NT_PRSTATUS: u64 = 1;
const NT_FPREGSET: u64 = 2;
const NT_PRPSINFO: u64 = 3;
const NT_AUXV: u64 = 6;
const NT_X86_XSTATE: u64 = 0x202;
const NT_FILE: u64 = 0x4649_4c45;
const NT_SIGINFO: u64 = 0x5349_4749;

/// An address that is not mapped.
const NOWHERE: u64 = 0x1000;
const UNLIMITED: u64 = u64::MAX;

fn killed(signal: Signal, dumps_core: bool) -> ExitStatus {
    ExitStatus::Killed { signal, dumps_core }
}

trait CoreSteps {
    fn limits(self, resource: u32, soft: u64) -> Self;
    fn aborts(self) -> Self;
}

impl CoreSteps for Program {
    fn limits(self, resource: u32, soft: u64) -> Self {
        self.store(DATA, &soft.to_le_bytes())
            .store(DATA + 8, &UNLIMITED.to_le_bytes())
            .syscall(linux::__NR_setrlimit, &[resource.into(), DATA])
            .returns(0)
    }

    fn aborts(self) -> Self {
        self.syscall(linux::__NR_kill, &[1, 6]).step(|_| panic!("the signal ends the process"))
    }
}

struct Core(Vec<u8>);

impl Core {
    fn of(cell: &Cell, path: &str) -> Self {
        Self(cell.read_bytes(path).unwrap())
    }

    fn elf(&self) -> ElfBytes<'_, LittleEndian> {
        ElfBytes::minimal_parse(&self.0).unwrap()
    }

    /// Returns the notes, in their order.
    fn notes(&self) -> Vec<(u64, Vec<u8>)> {
        let elf = self.elf();
        let segment = elf.segments().unwrap().iter().find(|segment| segment.p_type == abi::PT_NOTE).unwrap();
        let notes = elf.segment_data_as_notes(&segment).unwrap();
        notes
            .map(|note| match note {
                Note::Unknown(note) => (note.n_type, note.desc.to_vec()),
                other => panic!("{other:?}"),
            })
            .collect()
    }

    fn note(&self, kind: u64) -> Vec<u8> {
        self.notes().into_iter().find(|(found, _)| *found == kind).unwrap().1
    }

    /// Returns bytes of the process's memory, or `None` if the file has no contents for them.
    fn memory(&self, address: u64, len: usize) -> Option<Vec<u8>> {
        let elf = self.elf();
        let segment = elf.segments().unwrap().iter().find(|segment| {
            segment.p_type == abi::PT_LOAD
                && (segment.p_vaddr..segment.p_vaddr + segment.p_memsz).contains(&address)
        });
        let segment = segment.expect("a program header for each mapping");
        let offset = address - segment.p_vaddr;
        (offset + len as u64 <= segment.p_filesz).then(|| {
            let at = (segment.p_offset + offset) as usize;
            self.0[at..at + len].to_vec()
        })
    }
}

fn word(bytes: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(bytes[offset..offset + 8].try_into().unwrap())
}

#[test]
fn a_core_file_has_the_memory_and_the_registers_of_each_thread() {
    const WORD: u64 = DATA + 0x3000;
    let second = CODE + 0x10_0000;
    let cell = Cell::new();
    let flags = linux::CLONE_VM | linux::CLONE_SIGHAND | linux::CLONE_THREAD | linux::CLONE_CHILD_CLEARTID;
    let program = Program::new()
        .limits(linux::RLIMIT_CORE, UNLIMITED)
        .store(DATA + 0x1234, b"seen in the core file")
        .store(WORD + 8, b"cleared at the thread's end")
        .syscall(linux::__NR_clone, &[flags.into(), DATA + 0xf000, 0, WORD + 8, 0])
        .if_zero(second, 0)
        .returns(2)
        // The thread waits.
        .syscall(linux::__NR_sched_yield, &[])
        .syscall(linux::__NR_sched_yield, &[])
        .step(|processor| {
            processor.registers().rbx = 0xabcd;
            processor.store(NOWHERE, b"x")
        });
    cell.install("/program", program);
    let thread = Program::new().syscall(linux::__NR_futex, &[WORD, linux::FUTEX_WAIT.into(), 0, 0]);
    cell.user_mode.place(second, thread);
    assert_eq!(cell.run(&["/program", "first"]), killed(Signal::SIGSEGV, true));

    let core = Core::of(&cell, "/core");
    let header = core.elf().ehdr;
    assert_eq!((header.e_type, header.e_machine), (abi::ET_CORE, abi::EM_X86_64));
    let kinds: Vec<u64> = core.notes().iter().map(|(kind, _)| *kind).collect();
    let first = [NT_PRSTATUS, NT_PRPSINFO, NT_SIGINFO, NT_AUXV, NT_FILE, NT_FPREGSET, NT_X86_XSTATE];
    assert_eq!(kinds, [&first[..], &[NT_PRSTATUS, NT_FPREGSET, NT_X86_XSTATE]].concat());

    let threads: Vec<Vec<u8>> =
        core.notes().into_iter().filter(|(kind, _)| *kind == NT_PRSTATUS).map(|(_, status)| status).collect();
    let registers =
        |status: &[u8]| -> Vec<u64> { (0..27).map(|index| word(status, 112 + 8 * index)).collect() };
    let [first, waiting] = &threads[..] else { panic!("two threads") };
    assert_eq!((first.len(), first[0], first[12], first[32], waiting[32]), (336, 11, 11, 1, 2));
    // RBX, the number of the call, RIP.
    let found = registers(first);
    assert_eq!([found[5], found[15]], [0xabcd, u64::MAX]);
    assert!((CODE..CODE + 64 * STEP_SIZE).contains(&found[16]), "{:x}", found[16]);
    let found = registers(waiting);
    assert_eq!(found[15], linux::__NR_futex.into(), "the thread waits in a call");
    assert_eq!(found[10].cast_signed(), -512, "which is to be restarted");

    let information = core.note(NT_PRPSINFO);
    assert_eq!(
        (information.len(), &information[40..48], &information[56..71]),
        (136, &b"program\0"[..], &b"/program first\0"[..])
    );
    assert_eq!(word(&core.note(NT_SIGINFO), 16), NOWHERE);
    let auxiliary = core.note(NT_AUXV);
    let entry = auxiliary.chunks(16).find(|pair| word(pair, 0) == linux::AT_ENTRY.into()).unwrap();
    assert_eq!(word(entry, 8), CODE);
    let files = core.note(NT_FILE);
    assert_eq!((word(&files, 8), word(&files, 16)), (4096, CODE));
    assert!(files.ends_with(b"/program\0"), "{files:?}");

    assert_eq!(core.memory(DATA + 0x1234, 21).unwrap(), b"seen in the core file");
    assert_eq!(core.memory(DATA + 0x8000, 4).unwrap(), [0; 4], "a page that was never written");
    assert_eq!(core.memory(WORD + 8, 7).unwrap(), b"cleared", "no thread has ended before");
    assert_eq!(core.memory(CODE, 4).unwrap(), b"\x7fELF");
    assert_eq!(core.0.len() as u64 % 4096, 0);
    let reports = cell.environment.reports.lock().unwrap();
    assert!(reports.iter().any(|report| report.contains("written the core file core")), "{reports:?}");
}

#[test]
fn pages_of_files_are_in_the_file_if_the_mapping_was_written() {
    const MAPPED: u64 = 0x80_0000;
    let map = |program: Program, at: u64, protection, flags: u32| {
        let arguments = [at, 0x2000, u64::from(protection), u64::from(flags | linux::MAP_FIXED), 3, 0];
        program.syscall(linux::__NR_mmap, &arguments).returns(at as i64)
    };
    let cell = Cell::new();
    cell.write_file("/file", 0o644, &[b'f'; 0x2000]);
    let both = linux::PROT_READ | linux::PROT_WRITE;
    let program = Program::new()
        .limits(linux::RLIMIT_CORE, UNLIMITED)
        .store(DATA, b"/file\0")
        .syscall(linux::__NR_open, &[DATA, linux::O_RDWR.into()])
        .returns(3);
    let program = map(program, MAPPED, both, linux::MAP_PRIVATE);
    let program = map(program, MAPPED + 0x1_0000, both, linux::MAP_PRIVATE);
    let program = map(program, MAPPED + 0x2_0000, both, linux::MAP_SHARED);
    let program = map(program, MAPPED + 0x3_0000, both, linux::MAP_SHARED | linux::MAP_ANONYMOUS);
    let program = map(program, MAPPED + 0x4_0000, both, linux::MAP_PRIVATE | linux::MAP_ANONYMOUS);
    let program = map(program, MAPPED + 0x5_0000, both, linux::MAP_PRIVATE | linux::MAP_ANONYMOUS);
    let program = (0..6)
        .filter(|part| *part != 1)
        .fold(program, |program, part| program.store(MAPPED + part * 0x1_0000, b"w"))
        .syscall(linux::__NR_madvise, &[MAPPED + 0x4_0000, 0x2000, linux::MADV_DONTDUMP.into()])
        .returns(0)
        .syscall(linux::__NR_mprotect, &[MAPPED + 0x5_0000, 0x2000, 0])
        .returns(0)
        .aborts();
    cell.install("/program", program);
    assert_eq!(cell.run(&["/program"]), killed(Signal::SIGABRT, true));
    let core = Core::of(&cell, "/core");
    let start = |part: u64| core.memory(MAPPED + part * 0x1_0000, 2);
    assert_eq!(start(0).unwrap(), b"wf", "written, private");
    assert_eq!(core.memory(MAPPED + 0x1000, 1).unwrap(), b"f", "its other page");
    assert_eq!(start(1), None, "not written");
    assert_eq!(start(2), None, "shared, of a file");
    assert_eq!(start(3).unwrap(), b"w\0", "shared memory");
    assert_eq!(start(4), None, "MADV_DONTDUMP");
    assert_eq!(start(5).unwrap(), b"w\0", "without access");
}

#[test]
fn limits_and_the_process_itself_prevent_a_core_file() {
    let limited = |limit| Program::new().limits(linux::RLIMIT_CORE, limit);
    for (limit, len) in [(0, None), (4095, None), (0x3000, Some(0x3000))] {
        let cell = Cell::new();
        cell.install("/program", limited(limit).store(DATA + 0x5000, b"x").aborts());
        assert_eq!(cell.run(&["/program"]), killed(Signal::SIGABRT, len.is_some()));
        assert_eq!(cell.read_bytes("/core").map(|bytes| bytes.len()).ok(), len);
    }
    let cell = Cell::new();
    let program = limited(UNLIMITED).limits(linux::RLIMIT_FSIZE, 0x4000).store(DATA + 0x5000, b"x").aborts();
    cell.install("/program", program);
    cell.run(&["/program"]);
    assert!(cell.read_bytes("/core").unwrap().len() <= 0x4000);
    let cell = Cell::new();
    let program =
        limited(UNLIMITED).syscall(linux::__NR_prctl, &[prctl::PR_SET_DUMPABLE.into(), 0]).returns(0);
    cell.install("/program", program.aborts());
    assert_eq!(cell.run(&["/program"]), killed(Signal::SIGABRT, false));
    assert_eq!(cell.read_bytes("/core"), Err(Errno::ENOENT));
    // Signals that no error causes.
    let cell = Cell::new();
    cell.install(
        "/program",
        limited(UNLIMITED).syscall(linux::__NR_kill, &[1, 15]).step(|_| panic!("it ends")),
    );
    assert_eq!(cell.run(&["/program"]), killed(Signal::SIGTERM, false));
    assert_eq!(cell.read_bytes("/core"), Err(Errno::ENOENT));
}

#[test]
fn the_pattern_names_the_file() {
    for (pattern, uses_pid, path) in [
        ("/cores/%e.%p.%s\n", "0", Some("/cores/program.1.6")),
        ("core", "1\n", Some("/core.1")),
        ("/none/core", "0", None),
        ("\n", "1", None),
    ] {
        let cell = Cell::new();
        let proc = isola_linux_processes::proc::proc_file_system(&cell.system);
        cell.mount("/proc", proc);
        cell.make_directory("/cores").unwrap();
        cell.write_text("/proc/sys/kernel/core_pattern", pattern).unwrap();
        cell.write_text("/proc/sys/kernel/core_uses_pid", uses_pid).unwrap();
        let shown = cell.read_file("/proc/sys/kernel/core_pattern").unwrap();
        assert_eq!(shown.trim_end(), pattern.trim_end());
        assert_eq!(cell.write_text("/proc/sys/kernel/core_pattern", "|/bin/dump"), Err(Errno::EINVAL));
        cell.install("/program", Program::new().limits(linux::RLIMIT_CORE, UNLIMITED).aborts());
        assert_eq!(cell.run(&["/program"]), killed(Signal::SIGABRT, path.is_some()));
        if let Some(path) = path {
            assert_eq!(Core::of(&cell, path).note(NT_PRSTATUS)[12], 6);
        }
        let reports = cell.environment.reports.lock().unwrap();
        let failed = reports.iter().any(|report| report.contains("no core file /none/core: ENOENT"));
        assert_eq!(failed, pattern == "/none/core", "{reports:?}");
    }
}

#[test]
fn an_older_core_file_is_replaced_and_a_link_not_followed() {
    let cell = Cell::new();
    cell.write_file("/victim", 0o644, b"unchanged");
    let program = Program::new()
        .store(DATA + 0x100, b"/victim\0/core\0")
        .syscall(linux::__NR_symlink, &[DATA + 0x100, DATA + 0x108])
        .returns(0)
        .limits(linux::RLIMIT_CORE, UNLIMITED)
        .aborts();
    cell.install("/program", program);
    assert_eq!(cell.run(&["/program"]), killed(Signal::SIGABRT, true));
    assert_eq!(cell.read_file("/victim").unwrap(), "unchanged");
    assert_eq!(Core::of(&cell, "/core").note(NT_PRSTATUS)[12], 6);
}

#[test]
fn sigkill_ends_a_dump_early() {
    const MAPPED: u64 = 0x1_0000_0000;
    const LEN: u64 = 64 << 30;
    let cell = Cell::new();
    let child = CODE + 0x10_0000;
    let flags = linux::MAP_PRIVATE | linux::MAP_ANONYMOUS | linux::MAP_FIXED | linux::MAP_NORESERVE;
    let program = Program::new().syscall(linux::__NR_fork, &[]).if_zero(child, 0);
    // The dump of the child gives way for each 16 MiB, the parent for each call.
    let program = (0..100)
        .fold(program, |program, _| program.syscall(linux::__NR_sched_yield, &[]))
        .syscall(linux::__NR_kill, &[2, 9])
        .returns(0)
        .syscall(linux::__NR_wait4, &[2, DATA, 0, 0])
        .returns(2)
        .expect(DATA, &[6, 0, 0, 0])
        .exits(0);
    cell.install("/program", program);
    let program = Program::new()
        .limits(linux::RLIMIT_CORE, UNLIMITED)
        .syscall(
            linux::__NR_mmap,
            &[MAPPED, LEN, (linux::PROT_READ | linux::PROT_WRITE).into(), flags.into(), u64::MAX, 0],
        )
        .returns(MAPPED as i64)
        .store(MAPPED, b"x")
        .syscall(linux::__NR_kill, &[2, 6])
        .step(|_| panic!("the signal ends the process"));
    cell.user_mode.place(child, program);
    assert_eq!(cell.run(&["/program"]), ExitStatus::Exited(0));
    let reports = cell.environment.reports.lock().unwrap();
    assert!(reports.iter().any(|report| report.contains("no core file core: EINTR")), "{reports:?}");
}
