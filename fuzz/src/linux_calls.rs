//! All system calls of Linux programs, with hostile arguments.
//!
//! The input is read by several processes and threads, which all run the same program: each step reads the next bytes of
//! the input and makes a call, or accesses memory, or returns from a handler of a signal. Arguments are random, or fit
//! their parameter by its name in the table of calls. Structures and paths are written to memory before the call.

use crate::input::InputReader;
use crate::linux_cell::{CODE, DATA, DATA_LEN, run_program};
use isola_linux_abi::numbers as linux;
use isola_linux_processes::calls::{CALLS, Call};
use isola_linux_sim::{Processor, Program, STEP_SIZE};
use isola_user_mode::{PAGE_SIZE, Trap, USER_END};
use std::sync::{Arc, Mutex};

/// The step that returns from a handler, which is also the restorer of its frame.
const RESTORER: u64 = CODE + 2 * STEP_SIZE;

/// The first step of the first process.
const ENTRY: u64 = CODE + 4 * STEP_SIZE;

/// The bytes of a structure in memory, at most.
const SLOT_LEN: u64 = 256;

/// The most steps of all threads. Calls that need no input, such as those of a thread at the input's end, are few.
const MOST_STEPS: usize = 5_000;

/// Paths. The last has no NUL before the end of the data.
const PATHS: [&str; 32] = [
    "/program",
    "/script",
    "/file",
    "/damaged",
    "/",
    ".",
    "..",
    "",
    "/a",
    "/b",
    "/a/c",
    "/a/../b",
    "d",
    "e",
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/tty",
    "/dev/shm/x",
    "/dev/fd/0",
    "/proc",
    "/proc/self/maps",
    "/proc/self/fd",
    "/proc/self/fd/3",
    "/proc/self/exe",
    "/proc/1/status",
    "/proc/self/stat",
    "/proc/self/mem",
    "/proc/meminfo",
    "/sys/devices/system/cpu/online",
    "/proc/self/task/2/comm",
];

/// The input, which all threads read.
struct SharedInput {
    bytes: Vec<u8>,
    position: usize,
    steps: usize,
}

impl SharedInput {
    /// Counts a step, and returns whether the threads have to end.
    fn is_over(&mut self) -> bool {
        self.steps += 1;
        self.position >= self.bytes.len() || self.steps > MOST_STEPS
    }

    /// Calls a function with the rest of the input.
    fn with<T>(&mut self, read: impl FnOnce(&mut InputReader<'_>) -> T) -> T {
        let mut reader = InputReader::new(&self.bytes[self.position..]);
        let result = read(&mut reader);
        self.position = self.bytes.len() - reader.left();
        result
    }
}

/// Calls in several processes and threads, with any arguments: the cell neither panics nor hangs, and all memory is free
/// at the end.
pub fn calls(input: &[u8]) {
    let input = Arc::new(Mutex::new(SharedInput { bytes: input.to_vec(), position: 0, steps: 0 }));
    let of_first = input.clone();
    let program = Program::new()
        .step(move |processor| {
            let mut input = input.lock().unwrap();
            if input.is_over() {
                return call(processor, linux::__NR_exit_group.into(), [0; 6]);
            }
            input.with(|reader| step(processor, reader))
        })
        // Another thread continues.
        .step(|processor| {
            processor.registers().rip = CODE;
            Err(Trap::Interrupt)
        })
        .call(linux::__NR_rt_sigreturn.into(), [0; 6])
        .jump(CODE, 0)
        // The first process creates others while there is input, and waits for each. Its memory stays whole.
        .step(move |processor| {
            let number =
                if of_first.lock().unwrap().is_over() { linux::__NR_exit_group } else { linux::__NR_fork };
            call(processor, number.into(), [0; 6])
        })
        .step(|processor| {
            if processor.registers().rax == 0 {
                processor.registers().rip = CODE;
                return Ok(());
            }
            call(processor, linux::__NR_wait4.into(), [u64::MAX, 0, 0, 0, 0, 0])
        })
        .jump(CODE, (ENTRY - CODE) / STEP_SIZE);
    run_program(program, ENTRY);
}

/// Makes one step of a thread.
fn step(processor: &mut Processor<'_>, input: &mut InputReader<'_>) -> Result<(), Trap> {
    let selector = input.byte();
    match selector {
        0..=199 => {
            let call_entry = &CALLS[usize::from(input.byte()) * CALLS.len() / 256];
            make_call(processor, input, call_entry)
        }
        // Calls that create threads and processes, and those that they wait with.
        200..=203 => call(processor, linux::__NR_fork.into(), [0; 6]),
        204..=209 => {
            let thread = linux::CLONE_VM
                | linux::CLONE_FS
                | linux::CLONE_FILES
                | linux::CLONE_SIGHAND
                | linux::CLONE_THREAD
                | linux::CLONE_SYSVSEM
                | linux::CLONE_CHILD_CLEARTID;
            let word = DATA + u64::from(input.byte()) * 4;
            call(processor, linux::__NR_clone.into(), [thread.into(), 0, word, word, 0, 0])
        }
        210..=214 => call(processor, linux::__NR_wait4.into(), [u64::MAX, 0, (selector % 2).into(), 0, 0, 0]),
        215..=219 => {
            let word = DATA + u64::from(input.byte() % 4) * 4;
            let operation = u64::from(input.byte() % 14) | u64::from(input.byte() % 4) << 7;
            let words = [word, operation, small(input), small(input), word ^ 4, u64::from(input.word())];
            call(processor, linux::__NR_futex.into(), words)
        }
        220..=224 => set_action(processor, input),
        225..=229 => {
            let (pid, signal) = (u64::from(input.byte() % 6 + 1), u64::from(input.byte() % 65));
            let number = if selector.is_multiple_of(2) { linux::__NR_kill } else { linux::__NR_tkill };
            call(processor, number.into(), [pid, signal, 0, 0, 0, 0])
        }
        230..=233 => {
            // Return from a handler: the address of the restorer is on the stack.
            let mut word = [0; 8];
            let stack = processor.registers().rsp;
            processor.load(stack, &mut word)?;
            processor.registers().rsp = stack.wrapping_add(8);
            processor.registers().rip = u64::from_le_bytes(word);
            Ok(())
        }
        234 => {
            // Changes the frame of a handler, or what the program has on its stack.
            let address = processor.registers().rsp.wrapping_add(u64::from(input.word() % 1200));
            let bytes: [u8; 8] = number(input).to_le_bytes();
            processor.store(address, &bytes)
        }
        235 => {
            let value = pointer(input);
            processor.registers().rsp = value;
            Ok(())
        }
        236 => Err(Trap::Exception { vector: input.byte() % 32, error_code: 0 }),
        237 => Err(Trap::Interrupt),
        238 => call(processor, number(input), [number(input); 6]),
        239 => {
            processor.registers().rip = pointer(input);
            Ok(())
        }
        240..=243 => processor.execute(pointer(input)),
        244..=249 => processor.load(pointer(input), &mut [0; 9]),
        _ => {
            let bytes = number(input).to_le_bytes();
            processor.store(pointer(input), &bytes)
        }
    }
}

/// Makes a system call.
fn call(processor: &mut Processor<'_>, number: u64, words: [u64; 6]) -> Result<(), Trap> {
    let registers = processor.registers();
    registers.rax = number;
    let [rdi, rsi, rdx, r10, r8, r9] = words;
    (registers.rdi, registers.rsi, registers.rdx) = (rdi, rsi, rdx);
    (registers.r10, registers.r8, registers.r9) = (r10, r8, r9);
    Err(Trap::SystemCall)
}

/// Makes a call with arguments that its parameters' names suggest.
fn make_call(processor: &mut Processor<'_>, input: &mut InputReader<'_>, entry: &Call) -> Result<(), Trap> {
    let mut words = [0; 6];
    let is_wild = input.byte() >= 240;
    for (index, (word, name)) in words.iter_mut().zip(entry.parameters).enumerate() {
        let slot = DATA + SLOT_LEN * (index as u64 + 1);
        *word = if is_wild { number(input) } else { argument(processor, input, entry, name, slot)? };
    }
    call(processor, entry.number, words)
}

/// Returns an argument for the parameter with this name, and stores its structure at `slot`.
fn argument(
    processor: &mut Processor<'_>,
    input: &mut InputReader<'_>,
    entry: &Call,
    name: &str,
    slot: u64,
) -> Result<u64, Trap> {
    let selector = input.byte();
    if selector < 8 {
        return Ok(number(input));
    }
    let one_of = |values: &[u32]| u64::from(values[usize::from(selector) % values.len()]);
    Ok(match (name, entry.name) {
        ("descriptor" | "from" | "to" | "epoll" | "first", _) => match selector {
            9..=12 => u64::MAX,
            _ => u64::from(selector % 12),
        },
        ("directory" | "new_directory", _) if selector < 200 => linux::AT_FDCWD as i64 as u64,
        ("directory" | "new_directory", _) => u64::from(selector % 12),
        ("last", _) => u64::from(selector % 16) + 3,
        ("path" | "new_path" | "target" | "name", _) => {
            let path = PATHS[usize::from(selector) % PATHS.len()];
            processor.store(slot, path.as_bytes())?;
            processor.store(slot + path.len() as u64, &[0])?;
            slot
        }
        ("pid" | "tid" | "group" | "id", _) if selector < 240 => u64::from(selector % 6),
        ("number", _) => u64::from(selector % 65),
        ("arguments" | "vector" | "list" | "environment" | "event", _) => {
            // Pairs of a pointer and a length, a list of pointers, the words of `clone3`.
            for word in 0..u64::from(selector % 12) {
                let value = if word % 2 == 0 { pointer(input) } else { small(input) };
                processor.store(slot + 8 * word, &value.to_le_bytes())?;
            }
            slot
        }
        ("timeout" | "request" | "time" | "times" | "limit" | "value" | "status" | "options", called)
            if selector < 180 && called != "ioctl" =>
        {
            for word in 0..4 {
                processor.store(slot + 8 * word, &small(input).to_le_bytes())?;
            }
            slot
        }
        ("timeout_ms", _) => u64::from(selector),
        (
            "address" | "new_address",
            "mmap" | "mprotect" | "munmap" | "mremap" | "madvise" | "mincore" | "msync",
        ) if selector < 240 => pointer(input) & !(PAGE_SIZE - 1),
        ("protection" | "how" | "whence" | "kind", _) => u64::from(selector % 8),
        ("flags", "mmap") => {
            one_of(&[0x22, 0x21, 0x02, 0x01, 0x32, 0x122, 0x8022, 0x100_022, 0x31, 0x12, 0x4022])
        }
        ("flags", "open" | "openat") => {
            one_of(&[0, 1, 2, 0x41, 0x42, 0x241, 0x441, 0x1_0000, 0x20_0000, 0x802])
        }
        ("flags", _) if selector < 120 => 0,
        ("flags", _) if selector < 220 => 1 << (selector % 20),
        ("command", _) => match selector {
            0..=200 => u64::from(selector % 18),
            _ => 1024 + u64::from(selector % 14),
        },
        ("operation" | "policy" | "option", _) => u64::from(selector % 40),
        ("request", "ioctl") => {
            one_of(&[0x5401, 0x5413, 0x541b, 0x5421, 0x5450, 0x5451, 0x540f, 0x5410, 0x8004_5430])
        }
        ("advice", _) => u64::from(selector % 26),
        ("clock" | "resource", _) => u64::from(selector % 17),
        ("code", "arch_prctl") => 0x1001 + u64::from(selector % 4),
        (
            "address" | "new_address" | "buffer" | "old" | "new" | "remaining" | "info" | "events" | "set"
            | "mask" | "descriptors" | "word" | "second" | "parent_tid" | "child_tid" | "head" | "states"
            | "stack" | "readable" | "writable" | "exceptional" | "offset" | "from_offset" | "to_offset",
            _,
        ) if selector < 230 => match selector % 8 {
            0 => 0,
            1..=4 => slot,
            _ => pointer(input),
        },
        ("len" | "new_len" | "size" | "count" | "most", _) => match selector % 4 {
            0 => 8,
            1 => u64::from(input.byte()),
            2 => u64::from(selector / 16) * PAGE_SIZE,
            _ => number(input),
        },
        ("offset", _) if selector < 250 => u64::from(selector % 4) * PAGE_SIZE / 2,
        _ => flags(input),
    })
}

/// Sets the action of a signal.
fn set_action(processor: &mut Processor<'_>, input: &mut InputReader<'_>) -> Result<(), Trap> {
    let handler = match input.byte() {
        0..=20 => 0,
        21..=40 => 1,
        41..=60 => pointer(input),
        _ => CODE,
    };
    let restorer = if input.byte() < 240 { RESTORER } else { number(input) };
    let flags = flags(input) | u64::from(linux::SA_RESTORER);
    for (index, word) in [handler, flags, restorer, number(input)].into_iter().enumerate() {
        processor.store(DATA + 8 * index as u64, &word.to_le_bytes())?;
    }
    call(processor, linux::__NR_rt_sigaction.into(), [u64::from(input.byte() % 65), DATA, 0, 8, 0, 0])
}

/// A small number, mostly.
fn small(input: &mut InputReader<'_>) -> u64 {
    match input.byte() {
        selector @ 0..=191 => u64::from(selector % 24),
        192..=223 => u64::from(input.word()),
        _ => number(input),
    }
}

/// A few bits of a word, or a number.
fn flags(input: &mut InputReader<'_>) -> u64 {
    let selector = input.byte();
    match selector / 64 {
        0 => u64::from(selector),
        1 => 1 << (selector % 64),
        2 => 1 << (selector % 64) | 1 << (input.byte() % 64),
        _ => number(input),
    }
}

/// An address: data of the program mostly, its code, its stack, the end of its space, or none.
fn pointer(input: &mut InputReader<'_>) -> u64 {
    let selector = input.byte();
    let offset = u64::from(input.byte());
    match selector / 16 {
        0..=7 => DATA + offset * 8,
        8..=9 => DATA + DATA_LEN - offset,
        10 => CODE + offset,
        11 => 0,
        12 => 0x7fff_ffff_f000 - offset * PAGE_SIZE,
        13 => 0x10_0000 + offset * PAGE_SIZE,
        14 => USER_END.wrapping_sub(offset),
        _ => number(input),
    }
}

/// Any number.
fn number(input: &mut InputReader<'_>) -> u64 {
    let selector = input.byte();
    match selector / 32 {
        0 => u64::from(selector),
        1 => 0_u64.wrapping_sub(selector.into()),
        2 => i32::MAX as u64 + u64::from(selector % 4),
        3 => u64::from(u32::MAX) - u64::from(selector % 4),
        4 => i64::MAX as u64 - u64::from(selector % 4),
        5 => 1 << (selector % 64),
        6 => u64::from(input.word()) * PAGE_SIZE,
        _ => u64::from_le_bytes(core::array::from_fn(|_| input.byte())),
    }
}
