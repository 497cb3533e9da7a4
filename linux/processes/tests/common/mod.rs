//! Processes in a simulated cell: programs are lists of steps, time advances when all threads wait.

#![allow(dead_code, reason = "each test uses a part")]

use isola_abi::id::ActivityId;
use isola_abi::query::ActivityTraffic;
use isola_linux_abi::net::AF_UNIX;
use isola_linux_abi::numbers as linux;
use isola_linux_files::{CallerIds, Credentials as FileCredentials, DescriptorTable, OpenFile};
use isola_linux_files::{
    Console, ConsoleOutput, MountFlags, MountedFileSystem, Namespace, TmpFs, TmpFsOptions, View,
};
use isola_linux_memory::{BoxFuture, FrameBudget, UserBuffer};
use isola_linux_processes::credentials::Credentials;
use isola_linux_processes::loader::ProgramInput;
use isola_linux_processes::{
    Activities, CoreTime, Environment, Errno, ExitStatus, FirstProgram, Share, SharedResource, System,
    TaskMaker, TaskPlacement, start,
};
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
    /// The cycles, of 1 ns, that pass between two readings of the counter, beside ten.
    pub cycles_more: AtomicU64,
    /// The number of sleeps that have begun.
    pub sleeps: AtomicU64,
    random: AtomicU64,
    tasks: Mutex<Vec<(TaskMaker, TaskPlacement)>>,
    /// The core and the activity of the task that is polled, and the cycles up to which it is charged.
    current: Mutex<(usize, Option<ActivityId>, u64)>,
    pub grid: TestActivities,
    /// The cores that have nothing to do, a bit for each.
    pub halted_cores: AtomicU64,
    pub has_competition: AtomicBool,
    pub has_policy: AtomicBool,
    /// The polls of tasks so far.
    pub polls: AtomicU64,
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
        let more = self.cycles_more.load(Ordering::Relaxed);
        (self.cycles.fetch_add(10 + more, Ordering::Relaxed), 1_000_000_000)
    }

    fn sleep_until(&self, until_ns: u64) -> BoxFuture<'static, ()> {
        self.sleeps.fetch_add(1, Ordering::Relaxed);
        let this = CURRENT.with(|current| current.borrow().clone()).expect("a test runs");
        Box::pin(poll_fn(move |context| {
            if this.monotonic_ns() >= until_ns {
                return Poll::Ready(());
            }
            this.sleepers.lock().unwrap().push((until_ns, context.waker().clone()));
            Poll::Pending
        }))
    }

    fn spawn(&self, task: TaskMaker, placement: TaskPlacement) {
        self.tasks.lock().unwrap().push((task, placement));
    }

    fn random(&self) -> u64 {
        self.random.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed)
    }

    fn core_count(&self) -> usize {
        3
    }

    fn current_core(&self) -> usize {
        self.current.lock().unwrap().0
    }

    fn halted_cores(&self) -> u64 {
        self.halted_cores.load(Ordering::Relaxed)
    }

    fn has_competition(&self) -> bool {
        self.has_competition.load(Ordering::Relaxed)
    }

    fn has_policy(&self) -> bool {
        self.has_policy.load(Ordering::Relaxed)
    }

    fn core_times(&self) -> Vec<CoreTime> {
        let time =
            |core| CoreTime { core, busy_ns: 2_000_000_000, idle_ns: 3_000_000_000, ..CoreTime::default() };
        (0..3).map(time).collect()
    }

    fn activities(&self) -> &dyn Activities {
        &self.grid
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

/// A tree of activities, with the cycles of the polls of their tasks.
#[derive(Default)]
pub struct TestActivities(Mutex<Vec<TestActivity>>);

/// An activity. Its id is its index.
#[derive(Clone, Debug, Default)]
pub struct TestActivity {
    pub parent: Option<usize>,
    pub name: String,
    /// Its own cycles, and those of ended activities below.
    pub cycles: u64,
    pub has_ended: bool,
    pub traffic: ActivityTraffic,
    pub processor: Share,
    pub disk: Share,
}

impl TestActivities {
    /// Returns all activities, the first of which is the application's.
    pub fn all(&self) -> Vec<TestActivity> {
        self.0.lock().unwrap().clone()
    }

    /// Counts traffic for the latest activity with a name.
    pub fn count_traffic(&self, name: &str, traffic: ActivityTraffic) {
        let mut all = self.0.lock().unwrap();
        all.iter_mut().rev().find(|activity| activity.name == name).unwrap().traffic = traffic;
    }

    /// Returns the latest activity with a name.
    pub fn named(&self, name: &str) -> TestActivity {
        let found = self.all().into_iter().rev().find(|activity| activity.name == name);
        found.unwrap_or_else(|| panic!("no activity {name} in {:?}", self.all()))
    }

    fn charge(&self, activity: Option<ActivityId>, cycles: u64) {
        let mut all = self.0.lock().unwrap();
        if all.is_empty() {
            all.push(TestActivity { name: "application".into(), ..TestActivity::default() });
        }
        let charged = &mut all[activity.map_or(0, ActivityId::index)];
        assert!(!charged.has_ended, "an activity is charged after its end: {charged:?}");
        charged.cycles += cycles;
    }
}

impl Activities for TestActivities {
    fn register(&self, parent: Option<ActivityId>, name: &str) -> Option<ActivityId> {
        self.charge(None, 0);
        let mut all = self.0.lock().unwrap();
        let parent = Some(parent.map_or(0, ActivityId::index));
        all.push(TestActivity { parent, name: name.into(), ..TestActivity::default() });
        Some(ActivityId(all.len() as u32 - 1))
    }

    fn rename(&self, activity: ActivityId, name: &str) {
        self.0.lock().unwrap()[activity.index()].name = name.into();
    }

    fn end(&self, activity: ActivityId, parent: Option<ActivityId>) {
        let current = CURRENT.with(|current| current.borrow().clone()).expect("a test runs");
        let mut running = current.current.lock().unwrap();
        if running.1 == Some(activity) {
            // The rest of the poll is the parent's.
            let now = current.cycles.load(Ordering::Relaxed);
            self.charge(running.1, now - running.2);
            (running.1, running.2) = (parent, now);
        }
        let mut all = self.0.lock().unwrap();
        let ended = std::mem::replace(&mut all[activity.index()].has_ended, true);
        assert!(!ended, "an activity ends once");
        let cycles = all[activity.index()].cycles;
        all[parent.map_or(0, ActivityId::index)].cycles += cycles;
    }

    fn charge_to(&self, activity: Option<ActivityId>) {
        let environment = CURRENT.with(|current| current.borrow().clone()).expect("a test runs");
        let now = environment.cycles.load(Ordering::Relaxed);
        let (_, before, since) = *environment.current.lock().unwrap();
        self.charge(before, now - since);
        let mut current = environment.current.lock().unwrap();
        (current.1, current.2) = (activity, now);
    }

    fn cycles(&self, activity: ActivityId) -> u64 {
        let all = self.all();
        let below = |id: usize| {
            std::iter::successors(Some(id), |id| all[*id].parent).any(|above| above == activity.index())
        };
        (0..all.len()).filter(|id| !all[*id].has_ended && below(*id)).map(|id| all[id].cycles).sum()
    }

    fn traffic(&self, activity: Option<ActivityId>) -> ActivityTraffic {
        self.0.lock().unwrap()[activity.map_or(0, ActivityId::index)].traffic
    }

    fn set_share(&self, activity: ActivityId, resource: SharedResource, share: Share) {
        let mut all = self.0.lock().unwrap();
        match resource {
            SharedResource::Processor => all[activity.index()].processor = share,
            SharedResource::Disk => all[activity.index()].disk = share,
        }
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
        Self::with_traces(false)
    }

    /// Creates a cell that prints calls, or not.
    pub fn with_traces(traces: bool) -> Self {
        let user_mode = &*Box::leak(Box::new(SimulatedUserMode::new()));
        let environment = Arc::new(TestEnvironment::default());
        CURRENT.with(|current| *current.borrow_mut() = Some(environment.clone()));
        let files = TmpFs::new(TmpFsOptions::of_len(16 << 20));
        let mounted = MountedFileSystem::new(files);
        let namespace = Namespace::new(mounted, b"tmpfs", MountFlags::default());
        let budget = Arc::new(FrameBudget::new(10_000));
        let system = System::new(user_mode, environment.clone(), budget, namespace, traces);
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

    /// Returns all cycles so far.
    pub fn cycles(&self) -> u64 {
        self.environment.cycles.load(Ordering::Relaxed)
    }

    /// Mounts a file system at a new directory of the root.
    pub fn mount(&self, path: &str, files: Arc<dyn isola_linux_files::FileSystem>) {
        run(self.as_root(async |caller| {
            let made = caller.make_directory_at(linux::AT_FDCWD, path.as_bytes(), 0o755).await;
            assert!(matches!(made, Ok(()) | Err(Errno::EEXIST)), "{made:?}");
            let point = caller
                .locate(linux::AT_FDCWD, path.as_bytes(), isola_linux_files::LastLink::Follow)
                .await
                .unwrap();
            let mounted = MountedFileSystem::new(files);
            self.system.namespace.mount(&point, mounted, b"test", MountFlags::default()).unwrap();
        }));
    }

    /// Calls `access` as the superuser.
    pub async fn as_root<T>(&self, access: impl AsyncFnOnce(&isola_linux_files::Caller<'_>) -> T) -> T {
        let view = View::new(self.system.namespace.clone());
        let (credentials, descriptors) = (FileCredentials::root(), DescriptorTable::new());
        let ids = CallerIds { process: 1, thread: 1 };
        let caller = isola_linux_files::Caller {
            view: &view,
            credentials: &credentials,
            descriptors: &descriptors,
            ids,
        };
        access(&caller).await
    }

    /// Reads a file.
    pub fn read_file(&self, path: &str) -> Result<String, Errno> {
        Ok(String::from_utf8(self.read_bytes(path)?).unwrap())
    }

    /// Reads a file of bytes.
    pub fn read_bytes(&self, path: &str) -> Result<Vec<u8>, Errno> {
        run(self.as_root(async |caller| {
            let file = caller.open_at(linux::AT_FDCWD, path.as_bytes(), linux::O_RDONLY, 0).await?;
            file.read_bytes(0, 4 << 20).await
        }))
    }

    /// Writes to a file that exists.
    pub fn write_text(&self, path: &str, text: &str) -> Result<(), Errno> {
        run(self.as_root(async |caller| {
            let file = caller.open_at(linux::AT_FDCWD, path.as_bytes(), linux::O_WRONLY, 0).await?;
            file.write(&mut UserBuffer::of_bytes(text.as_bytes())).await.map(|_| ())
        }))
    }

    /// Creates a directory.
    pub fn make_directory(&self, path: &str) -> Result<(), Errno> {
        run(self
            .as_root(async |caller| caller.make_directory_at(linux::AT_FDCWD, path.as_bytes(), 0o755).await))
    }

    /// Removes a directory.
    pub fn remove_directory(&self, path: &str) -> Result<(), Errno> {
        run(self.as_root(async |caller| {
            caller.unlink_at(linux::AT_FDCWD, path.as_bytes(), linux::AT_REMOVEDIR).await
        }))
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
        type Task = (Pin<Box<dyn Future<Output = ()>>>, Arc<Woken>, TaskPlacement);
        let result = std::rc::Rc::new(std::cell::Cell::new(None));
        let place = result.clone();
        let woken = || Arc::new(Woken(AtomicBool::new(true)));
        let mut tasks: Vec<Task> =
            vec![(Box::pin(async move { place.set(Some(future.await)) }), woken(), TaskPlacement::default())];
        for _ in 0..200_000 {
            let new = std::mem::take(&mut *self.environment.tasks.lock().unwrap());
            tasks.extend(
                new.into_iter().map(|(make, placement)| {
                    (make() as Pin<Box<dyn Future<Output = ()>>>, woken(), placement)
                }),
            );
            let mut has_progress = false;
            tasks.retain_mut(|(task, woken, placement)| {
                if !woken.0.swap(false, Ordering::SeqCst) {
                    return true;
                }
                has_progress = true;
                self.environment.polls.fetch_add(1, Ordering::Relaxed);
                let waker = Waker::from(woken.clone());
                let TaskPlacement { core, activity } = *placement;
                let before = self.cycles();
                *self.environment.current.lock().unwrap() = (core.unwrap_or(1), activity, before);
                let is_pending = task.as_mut().poll(&mut Context::from_waker(&waker)).is_pending();
                let (_, activity, since) = *self.environment.current.lock().unwrap();
                self.environment.grid.charge(activity, self.cycles() - since);
                is_pending
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

/// An event of readiness to read, as `epoll_ctl` and `epoll_wait` have it, with the number 7.
pub const READABLE: [u8; 12] = [1, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0];

/// Makes a pair of sockets of a type, 3 and 4, with their numbers at `pair`, and an event poll, 5, that observes the second
/// one. `event` has room for an event.
pub fn observed_pair(program: Program, socket_type: u64, pair: u64, event: u64) -> Program {
    program
        .syscall(linux::__NR_socketpair, &[AF_UNIX.into(), socket_type, 0, pair])
        .returns(0)
        .syscall(linux::__NR_epoll_create1, &[0])
        .returns(5)
        .store(event, &READABLE)
        .syscall(linux::__NR_epoll_ctl, &[5, linux::EPOLL_CTL_ADD.into(), 4, event])
        .returns(0)
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
