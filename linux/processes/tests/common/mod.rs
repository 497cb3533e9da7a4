//! Processes in a simulated cell: programs are lists of steps, time advances when all threads wait.

#![allow(dead_code, reason = "each test uses a part")]

use isola_linux_abi::numbers as linux;
use isola_linux_files::{CallerIds, Credentials as FileCredentials, DescriptorTable, OpenFile};
use isola_linux_files::{
    Console, ConsoleOutput, MountFlags, MountedFileSystem, Namespace, TmpFs, TmpFsOptions, View,
};
use isola_linux_memory::{BoxFuture, FrameBudget, UserBuffer};
use isola_linux_processes::credentials::Credentials;
use isola_linux_processes::loader::ProgramInput;
use isola_linux_processes::{Environment, Errno, ExitStatus, FirstProgram, System, TaskMaker, start};
use isola_linux_sim::{Program, STEP_SIZE, SimulatedUserMode, run};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

/// The address of the program of a test.
pub const CODE: u64 = 0x40_1000;
/// The address of 64 KiB of its data, zeros at the start.
pub const DATA: u64 = 0x60_0000;

/// A simulated cell.
pub struct Cell {
    pub user_mode: &'static SimulatedUserMode,
    pub system: Arc<System>,
    pub environment: Arc<TestEnvironment>,
    console: Arc<Output>,
}

#[derive(Default)]
pub struct TestEnvironment {
    clock_ns: AtomicU64,
    cycles: AtomicU64,
    random: AtomicU64,
    tasks: Mutex<Vec<TaskMaker>>,
    sleepers: Mutex<Vec<(u64, Waker)>>,
    pub reports: Mutex<Vec<String>>,
}

#[derive(Default)]
struct Output(Mutex<Vec<u8>>);

impl ConsoleOutput for Output {
    fn write(&self, bytes: &[u8]) {
        self.0.lock().unwrap().extend_from_slice(bytes);
    }
}

impl Environment for TestEnvironment {
    fn monotonic_ns(&self) -> u64 {
        self.clock_ns.load(Ordering::Relaxed)
    }

    fn unix_ns(&self) -> u64 {
        1_700_000_000_000_000_000 + self.monotonic_ns()
    }

    fn cycles(&self) -> (u64, u64) {
        (self.cycles.fetch_add(10, Ordering::Relaxed), 1_000_000_000)
    }

    fn sleep_until(&self, until_ns: u64) -> BoxFuture<'static, ()> {
        let this = CURRENT.with(|current| current.borrow().clone()).expect("a test runs");
        Box::pin(poll_fn(move |context| {
            if this.monotonic_ns() >= until_ns {
                return Poll::Ready(());
            }
            this.sleepers.lock().unwrap().push((until_ns, context.waker().clone()));
            Poll::Pending
        }))
    }

    fn spawn(&self, task: TaskMaker) {
        self.tasks.lock().unwrap().push(task);
    }

    fn random(&self) -> u64 {
        self.random.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed)
    }

    fn core_count(&self) -> usize {
        3
    }

    fn current_core(&self) -> usize {
        1
    }

    fn memory(&self) -> (u64, u64) {
        (64 << 20, 32 << 20)
    }

    fn host_name(&self) -> String {
        "cell".into()
    }

    fn report(&self, line: &str) {
        self.reports.lock().unwrap().push(line.into());
    }
}

thread_local! {
    static CURRENT: std::cell::RefCell<Option<Arc<TestEnvironment>>> = const { std::cell::RefCell::new(None) };
}

/// A flag that says that a task is to be polled.
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl Cell {
    pub fn new() -> Self {
        let user_mode = &*Box::leak(Box::new(SimulatedUserMode::new()));
        let environment = Arc::new(TestEnvironment::default());
        CURRENT.with(|current| *current.borrow_mut() = Some(environment.clone()));
        let files = TmpFs::new(TmpFsOptions::of_len(16 << 20));
        let mounted = MountedFileSystem::new(files);
        let namespace = Namespace::new(mounted, b"tmpfs", MountFlags::default());
        let budget = Arc::new(FrameBudget::new(10_000));
        let system = System::new(user_mode, environment.clone(), budget, namespace, false);
        Self { user_mode, system, environment, console: Arc::default() }
    }

    /// Writes a file of the root directory.
    pub fn write_file(&self, path: &str, mode: u32, contents: &[u8]) {
        run(async {
            let view = View::new(self.system.namespace.clone());
            let (credentials, descriptors) = (FileCredentials::root(), DescriptorTable::new());
            let caller = isola_linux_files::Caller {
                view: &view,
                credentials: &credentials,
                descriptors: &descriptors,
                ids: CallerIds { process: 1, thread: 1 },
            };
            let flags = linux::O_CREAT | linux::O_WRONLY | linux::O_TRUNC;
            let file = caller.open_at(linux::AT_FDCWD, path.as_bytes(), flags, mode).await.unwrap();
            file.write(&mut UserBuffer::of_bytes(contents)).await.unwrap();
        });
    }

    /// Places a program at [`CODE`], in a file that can be executed.
    pub fn install(&self, path: &str, program: Program) {
        self.install_at(path, CODE, program);
    }

    /// Places a program at an address, in a file that can be executed.
    pub fn install_at(&self, path: &str, code: u64, program: Program) {
        self.user_mode.place(code, program);
        self.write_file(path, 0o755, &elf(code));
    }

    /// Runs the program of a file as the first process, to its end.
    pub fn run(&self, arguments: &[&str]) -> ExitStatus {
        self.try_run(arguments).expect("the program starts")
    }

    /// As [`Self::run`]. Returns the error if the program cannot be started.
    pub fn try_run(&self, arguments: &[&str]) -> Result<ExitStatus, Errno> {
        let console = Console::new(self.console.clone());
        let file = || -> Arc<OpenFile> { console.open() };
        let program = FirstProgram {
            input: ProgramInput {
                arguments: arguments.iter().map(|argument| argument.as_bytes().to_vec()).collect(),
                environment: vec![b"HOME=/".to_vec()],
                path: arguments[0].as_bytes().to_vec(),
            },
            directory: b"/".to_vec(),
            credentials: Credentials::of(0, 0, vec![]),
            standard_files: [file(), file(), file()],
        };
        let system = self.system.clone();
        self.run_tasks(async move { start(&system, program).await })
    }

    /// Runs the program of a file as the first process with these open files, beside another future.
    pub fn run_with(
        &self,
        path: &str,
        standard_files: [Arc<OpenFile>; 3],
        beside: impl Future<Output = ()> + 'static,
    ) -> ExitStatus {
        let program = FirstProgram {
            input: ProgramInput {
                arguments: vec![path.as_bytes().to_vec()],
                environment: Vec::new(),
                path: path.as_bytes().to_vec(),
            },
            directory: b"/".to_vec(),
            credentials: Credentials::of(0, 0, vec![]),
            standard_files,
        };
        let system = self.system.clone();
        self.run_tasks(async move {
            let mut beside = Box::pin(beside);
            let mut started = Box::pin(start(&system, program));
            let mut is_over = false;
            poll_fn(|context| {
                let ended = started.as_mut().poll(context);
                is_over = is_over || beside.as_mut().poll(context).is_ready();
                ended
            })
            .await
            .expect("the program starts")
        })
    }

    /// Returns the output of the programs.
    pub fn output(&self) -> String {
        String::from_utf8(self.console.0.lock().unwrap().clone()).unwrap()
    }

    /// Runs a future and all tasks until the future and the tasks have ended.
    fn run_tasks<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> T {
        type Task = (Pin<Box<dyn Future<Output = ()>>>, Arc<Woken>);
        let result = std::rc::Rc::new(std::cell::Cell::new(None));
        let place = result.clone();
        let woken = || Arc::new(Woken(AtomicBool::new(true)));
        let mut tasks: Vec<Task> = vec![(Box::pin(async move { place.set(Some(future.await)) }), woken())];
        for _ in 0..200_000 {
            let new = std::mem::take(&mut *self.environment.tasks.lock().unwrap());
            tasks.extend(new.into_iter().map(|make| (make() as Pin<Box<dyn Future<Output = ()>>>, woken())));
            let mut has_progress = false;
            tasks.retain_mut(|(task, woken)| {
                if !woken.0.swap(false, Ordering::SeqCst) {
                    return true;
                }
                has_progress = true;
                let waker = Waker::from(woken.clone());
                task.as_mut().poll(&mut Context::from_waker(&waker)).is_pending()
            });
            if tasks.is_empty() && self.environment.tasks.lock().unwrap().is_empty() {
                return result.take().expect("the future has ended");
            }
            if !has_progress && self.environment.tasks.lock().unwrap().is_empty() {
                self.advance();
            }
        }
        panic!("the processes do not end");
    }

    /// Advances the clock to the end of the next sleep.
    fn advance(&self) {
        let mut sleepers = self.environment.sleepers.lock().unwrap();
        let next = sleepers.iter().map(|(until, _)| *until).min();
        let next = next.expect("all threads wait, and none for a time");
        self.environment.clock_ns.fetch_max(next, Ordering::Relaxed);
        let due: Vec<_> = sleepers.extract_if(.., |(until, _)| *until <= next).collect();
        drop(sleepers);
        due.into_iter().for_each(|(_, waker)| waker.wake());
    }
}

/// Returns an ELF file whose code is at `code`, and with 64 KiB of zeros at [`DATA`].
fn elf(code: u64) -> Vec<u8> {
    let mut bytes = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    bytes.extend([2, 0, 62, 0, 1, 0, 0, 0]);
    for word in [code, 64, 0] {
        bytes.extend(u64::to_le_bytes(word));
    }
    bytes.extend([0, 0, 0, 0, 64, 0, 56, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
    for [flags, offset, address, file_len, memory_len] in
        [[5, 0, code, 0x1000, 0x1000], [6, 0, DATA, 0, 0x1_0000_u64]]
    {
        bytes.extend(1_u32.to_le_bytes());
        bytes.extend((flags as u32).to_le_bytes());
        for word in [offset, address, address, file_len, memory_len, 4096] {
            bytes.extend(word.to_le_bytes());
        }
    }
    bytes.resize(0x1000, 0);
    bytes
}

/// Steps that tests use.
pub trait Steps {
    /// Adds a system call by its number.
    fn syscall(self, number: u32, arguments: &[u64]) -> Self;
    /// Adds a check of the latest call's result.
    fn returns(self, result: i64) -> Self;
    /// Adds `exit_group`.
    fn exits(self, code: u64) -> Self;
    /// Adds a step that jumps to the step `target` if the latest call returned 0, as the child of `fork` does.
    fn if_zero(self, base: u64, target: u64) -> Self;
    /// Stores the latest result at an address, as a word of 8 bytes.
    fn keeps(self, address: u64) -> Self;
}

impl Steps for Program {
    fn syscall(self, number: u32, arguments: &[u64]) -> Self {
        let mut words = [0; 6];
        words[..arguments.len()].copy_from_slice(arguments);
        self.call(number.into(), words)
    }

    fn returns(self, result: i64) -> Self {
        self.step(move |processor| {
            assert_eq!(processor.registers().rax as i64, result);
            Ok(())
        })
    }

    fn exits(self, code: u64) -> Self {
        self.syscall(linux::__NR_exit_group, &[code])
    }

    fn if_zero(self, base: u64, target: u64) -> Self {
        self.step(move |processor| {
            if processor.registers().rax == 0 {
                processor.registers().rip = base + target * STEP_SIZE;
            }
            Ok(())
        })
    }

    fn keeps(self, address: u64) -> Self {
        self.step(move |processor| {
            let value = processor.registers().rax;
            processor.store(address, &value.to_le_bytes())
        })
    }
}
