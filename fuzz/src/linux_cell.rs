//! A simulated cell for hostile Linux programs: it must neither panic nor hang, and gives all memory back.

use isola_abi::id::ActivityId;
use isola_abi::query::ActivityTraffic;
use isola_linux_files::{
    Caller, CallerIds, Console, ConsoleOutput, DescriptorTable, DevPts, DeviceTable, FileSystem, LastLink,
    MountFlags, MountedFileSystem, Namespace, TmpFs, TmpFsOptions, View, device_file_system,
};
use isola_linux_memory::{BoxFuture, FrameBudget, UserBuffer};
use isola_linux_processes::cgroup::cgroup_file_system;
use isola_linux_processes::credentials::Credentials;
use isola_linux_processes::loader::ProgramInput;
use isola_linux_processes::proc::{proc_file_system, sys_file_system};
use isola_linux_processes::{
    Activities, CoreTime, Environment, FirstProgram, Share, SharedResource, System, TaskMaker, TaskPlacement,
    start,
};
use isola_linux_sim::{Program, SimulatedUserMode, run};
use std::any::Any;
use std::cell::Cell as Slot;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Wake, Waker};

/// The address of the program, which [`PROGRAM`] contains.
pub(crate) const CODE: u64 = 0x40_1000;
/// The address of its data.
pub(crate) const DATA: u64 = 0x60_0000;
/// The length of its data, in bytes.
pub(crate) const DATA_LEN: u64 = 0x4000;
/// The program's file.
pub(crate) const PROGRAM: &str = "/program";

/// The environment variable that makes the cell print all calls.
const TRACE: &str = "ISOLA_TRACE";

/// The frames that processes may have.
const FRAMES: u64 = 2_000;
/// The length of each file system in memory, in bytes.
const FILES_LEN: u64 = 1 << 20;
/// The most rounds of polls, and the most advances of the clock, before the cell ends all processes.
const MOST_ROUNDS: usize = 20_000;
const MOST_ADVANCES: usize = 500;
/// The time that no cell reaches, in nanoseconds: 36 years.
const MOST_TIME_NS: u64 = 1 << 60;
/// The most rounds in which all processes have to end.
const MOST_ROUNDS_OF_END: usize = 10_000;

thread_local! {
    /// The platform. A system needs one that is never dropped.
    static USER_MODE: &'static SimulatedUserMode = Box::leak(Box::new(SimulatedUserMode::new()));
}

/// The cell's time and tasks.
#[derive(Default)]
struct SimulatedEnvironment {
    clock_ns: Arc<AtomicU64>,
    random: AtomicU64,
    tasks: Mutex<Vec<TaskMaker>>,
    sleepers: Arc<Mutex<Vec<(u64, Waker)>>>,
    activities: CountedActivities,
}

/// Activities without accounts: the number of those that have not ended.
#[derive(Default)]
struct CountedActivities {
    registered: AtomicU32,
    ended: AtomicU32,
}

impl Activities for CountedActivities {
    fn register(&self, _: Option<ActivityId>, _: &str) -> Option<ActivityId> {
        Some(ActivityId(self.registered.fetch_add(1, Ordering::Relaxed) + 1))
    }

    fn rename(&self, _: ActivityId, _: &str) {}

    fn end(&self, _: ActivityId, _: Option<ActivityId>) {
        self.ended.fetch_add(1, Ordering::Relaxed);
    }

    fn charge_to(&self, _: Option<ActivityId>) {}

    fn cycles(&self, _: ActivityId) -> u64 {
        0
    }

    fn traffic(&self, _: Option<ActivityId>) -> ActivityTraffic {
        ActivityTraffic::default()
    }

    fn set_share(&self, _: ActivityId, _: SharedResource, _: Share) {}
}

impl Environment for SimulatedEnvironment {
    fn monotonic_ns(&self) -> u64 {
        self.clock_ns.load(Ordering::Relaxed)
    }

    fn unix_ns(&self) -> u64 {
        1_700_000_000_000_000_000_u64.saturating_add(self.monotonic_ns())
    }

    fn cycles(&self) -> (u64, u64) {
        (self.monotonic_ns(), 1_000_000_000)
    }

    fn sleep_until(&self, until_ns: u64) -> BoxFuture<'static, ()> {
        let (clock, sleepers) = (self.clock_ns.clone(), self.sleepers.clone());
        Box::pin(poll_fn(move |context| {
            if clock.load(Ordering::Relaxed) >= until_ns {
                return Poll::Ready(());
            }
            sleepers.lock().unwrap().push((until_ns, context.waker().clone()));
            Poll::Pending
        }))
    }

    fn spawn(&self, task: TaskMaker, _: TaskPlacement) {
        self.tasks.lock().unwrap().push(task);
    }

    fn random(&self) -> u64 {
        self.random.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed)
    }

    fn core_count(&self) -> usize {
        2
    }

    fn current_core(&self) -> usize {
        0
    }

    fn halted_cores(&self) -> u64 {
        0
    }

    fn has_competition(&self) -> bool {
        false
    }

    fn core_times(&self) -> Vec<CoreTime> {
        Vec::new()
    }

    fn activities(&self) -> &dyn Activities {
        &self.activities
    }

    fn memory(&self) -> (u64, u64) {
        (FRAMES * 4096, FRAMES * 2048)
    }

    fn host_name(&self) -> String {
        "cell".into()
    }

    fn report(&self, line: &str) {
        if std::env::var_os(TRACE).is_some() {
            println!("{line}");
        }
    }
}

impl SimulatedEnvironment {
    /// Advances the clock to the end of the next sleep. Returns false if no thread's sleep will end.
    fn advance(&self) -> bool {
        let mut sleepers = self.sleepers.lock().unwrap();
        let next = sleepers.iter().map(|(until, _)| *until).min();
        let Some(next) = next.filter(|next| *next < MOST_TIME_NS) else { return false };
        self.clock_ns.fetch_max(next, Ordering::Relaxed);
        let due: Vec<_> = sleepers.extract_if(.., |(until, _)| *until <= next).collect();
        drop(sleepers);
        due.into_iter().for_each(|(_, waker)| waker.wake());
        true
    }
}

struct NoOutput;

impl ConsoleOutput for NoOutput {
    fn write(&self, _bytes: &[u8]) {}
}

/// A flag that says that a task is to be polled.
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Runs the program from `entry` on as the first process until all processes have ended. If they wait for each other, the cell ends them.
///
/// # Panics
/// If the processes do not end although they have to, or if memory is lost.
pub(crate) fn run_program(program: Program, entry: u64) {
    let user_mode = USER_MODE.with(|user_mode| *user_mode);
    user_mode.place(CODE, program);
    let environment = Arc::new(SimulatedEnvironment::default());
    let budget = Arc::new(FrameBudget::new(FRAMES));
    let console = Console::new(Arc::new(NoOutput));
    let namespace = Namespace::new(
        MountedFileSystem::new(TmpFs::new(TmpFsOptions::of_len(FILES_LEN))),
        b"tmpfs",
        MountFlags::default(),
    );
    let traces = std::env::var_os(TRACE).is_some();
    let system = System::new(user_mode, environment.clone(), budget.clone(), namespace.clone(), traces);
    run(prepare_files(&system, &console, &elf(entry)));
    let first = FirstProgram {
        input: ProgramInput {
            arguments: vec![b"program".to_vec()],
            environment: vec![b"HOME=/".to_vec()],
            path: PROGRAM.into(),
        },
        directory: b"/".to_vec(),
        credentials: Credentials::of(0, 0, vec![]),
        standard_files: [console.open(), console.open(), console.open()],
    };
    run_tasks(&system, &environment, first);
    user_mode.place(CODE, Program::new());
    // The platform forgets dropped address spaces when it creates another.
    drop(user_mode.space());
    assert_eq!(system.futexes.waiter_count(), 0, "a thread has ended and waits for a futex");
    let family = system.family.lock();
    assert!(
        family.processes().all(|(pid, _)| family.is_zombie(pid)),
        "a process has no thread, and has not ended"
    );
    drop(family);
    let CountedActivities { registered, ended } = &environment.activities;
    let living = registered.load(Ordering::Relaxed) - ended.load(Ordering::Relaxed);
    assert_eq!(living, 0, "activities of ended processes");
    let owners = [Arc::downgrade(&system) as Weak<dyn Any>, Arc::downgrade(&namespace) as Weak<dyn Any>];
    drop((system, namespace, console, environment));
    assert!(owners.iter().all(|owner| owner.strong_count() == 0), "the ended system has an owner");
    assert_eq!(budget.left(), FRAMES, "frames of ended processes");
}

/// Creates the files of the root directory, and mounts those of the system.
async fn prepare_files(system: &Arc<System>, console: &Arc<Console>, elf: &[u8]) {
    let view = View::new(system.namespace.clone());
    let (credentials, descriptors) = (isola_linux_files::Credentials::root(), DescriptorTable::new());
    let ids = CallerIds { process: 1, thread: 1 };
    let caller = Caller { view: &view, credentials: &credentials, descriptors: &descriptors, ids };
    let here = isola_linux_files::AT_FDCWD;
    let create = isola_linux_abi::numbers::O_CREAT | isola_linux_abi::numbers::O_WRONLY;
    let files: [(&str, &[u8]); 4] =
        [(PROGRAM, elf), ("/script", b"#!/program -x\n"), ("/file", &[7; 9000]), ("/damaged", &elf[..80])];
    for (path, contents) in files {
        let file = caller.open_at(here, path.as_bytes(), create, 0o755).await.unwrap();
        file.write(&mut UserBuffer::of_bytes(contents)).await.unwrap();
    }
    let devices = Arc::new(DeviceTable::default());
    system.terminals.register(&devices);
    let systems: [(&str, Arc<dyn FileSystem>); 5] = [
        ("/dev", device_file_system(&devices, console, |bytes| bytes.fill(3)).unwrap()),
        ("/dev/pts", DevPts::new(&system.terminals)),
        ("/proc", proc_file_system(system)),
        ("/sys", sys_file_system(system)),
        ("/sys/fs/cgroup", cgroup_file_system(system)),
    ];
    for (path, files) in systems {
        // Some are in a system that is mounted before.
        let _ = caller.make_directory_at(here, path.as_bytes(), 0o755).await;
        let point = caller.locate(here, path.as_bytes(), LastLink::Follow).await.unwrap();
        let mounted = MountedFileSystem::new(files);
        system.namespace.mount(&point, mounted, path.as_bytes(), MountFlags::default()).unwrap();
    }
}

/// Runs all tasks until they have ended.
fn run_tasks(system: &Arc<System>, environment: &SimulatedEnvironment, first: FirstProgram) {
    let has_ended = Arc::new(AtomicBool::new(false));
    let woken = || Arc::new(Woken(AtomicBool::new(true)));
    let start = {
        let (system, has_ended) = (system.clone(), has_ended.clone());
        async move {
            start(&system, first).await.expect("the program starts");
            has_ended.store(true, Ordering::SeqCst);
        }
    };
    let mut tasks: Vec<(BoxFuture<'static, ()>, Arc<Woken>)> = vec![(Box::pin(start), woken())];
    let (rounds, advances, rounds_of_end) = (Slot::new(0), Slot::new(0), Slot::new(0));
    let count = |counter: &Slot<usize>| counter.replace(counter.get() + 1);
    loop {
        let new = std::mem::take(&mut *environment.tasks.lock().unwrap());
        tasks.extend(new.into_iter().map(|make| (make(), woken())));
        if tasks.is_empty() {
            break;
        }
        let mut has_progress = false;
        tasks.retain_mut(|(task, woken)| {
            if !woken.0.swap(false, Ordering::SeqCst) {
                return true;
            }
            has_progress = true;
            task.as_mut().poll(&mut Context::from_waker(&Waker::from(woken.clone()))).is_pending()
        });
        has_progress |= !environment.tasks.lock().unwrap().is_empty();
        let is_ending = rounds_of_end.get() > 0;
        if is_ending {
            // A thread that has to end waits neither for another nor for a time.
            assert!(has_progress || tasks.is_empty(), "{} threads do not end", tasks.len());
            assert!(count(&rounds_of_end) < MOST_ROUNDS_OF_END, "the processes do not end");
        } else if count(&rounds) > MOST_ROUNDS
            || !has_progress && (count(&advances) > MOST_ADVANCES || !environment.advance())
        {
            count(&rounds_of_end);
            system.end_all();
        }
    }
    assert!(has_ended.load(Ordering::SeqCst), "the first process has not ended");
    environment.sleepers.lock().unwrap().clear();
}

/// Returns an ELF file with its code at [`CODE`], and zeros at [`DATA`].
fn elf(entry: u64) -> Vec<u8> {
    let mut bytes = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    bytes.extend([2, 0, 62, 0, 1, 0, 0, 0]);
    for word in [entry, 64, 0] {
        bytes.extend(u64::to_le_bytes(word));
    }
    bytes.extend([0, 0, 0, 0, 64, 0, 56, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
    for [flags, address, file_len, memory_len] in [[5, CODE, 0x1000, 0x1000], [6, DATA, 0, DATA_LEN]] {
        bytes.extend(1_u32.to_le_bytes());
        bytes.extend((flags as u32).to_le_bytes());
        for word in [0, address, address, file_len, memory_len, 4096] {
            bytes.extend(u64::to_le_bytes(word));
        }
    }
    bytes.resize(0x1000, 0);
    bytes
}
