//! A volume divided among activities, by the resource `files`.

use isola_abi::id::ActivityId;
use isola_events::{now, register_activity, sleep, spawn_task, spawn_task_for, timeout, yield_now};
use isola_fibers::block_on;
use isola_resources::{Entitlement, FILES, GridResource, PROCESSOR, PolicyKind, Rate, Resource, Weight};
use isola_test_task::run_task;
use isola_volumes::{
    Entry, FileError, FileId, FileKind, FileSystem, ListPosition, Metadata, Space, Volume, files_report,
};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// The calls of a [`TimedFileSystem`].
#[derive(Default)]
struct Calls {
    /// The names, in the order of their execution.
    names: RefCell<Vec<String>>,
    /// The time of the calls that have ended, by the name's first letter.
    ns: RefCell<BTreeMap<char, u64>>,
}

/// A file system whose look-ups take the time that the name says: `IDENTIFIER.MICROSECONDS`. They wait, as for a device, or
/// use the processor if the identifier begins with a capital letter.
struct TimedFileSystem(Rc<Calls>);

const ROOT: Metadata =
    Metadata { id: FileId(2), kind: FileKind::Directory, len: 0, modified: Duration::ZERO, links: 1 };

impl FileSystem for TimedFileSystem {
    fn root(&self) -> FileId {
        ROOT.id
    }

    fn lookup(&mut self, _: FileId, name: &[u8]) -> Result<Metadata, FileError> {
        let begun = now();
        let name = String::from_utf8(name.to_vec()).unwrap();
        let micros = name.rsplit('.').next().unwrap().parse().unwrap();
        let first = name.chars().next().unwrap();
        self.0.names.borrow_mut().push(name);
        if first.is_uppercase() {
            while now() < begun + Duration::from_micros(micros) {}
        } else if micros > 0 {
            block_on(sleep(Duration::from_micros(micros)));
        }
        *self.0.ns.borrow_mut().entry(first).or_default() += now().as_ns() - begun.as_ns();
        Ok(Metadata { kind: FileKind::File, ..ROOT })
    }

    fn metadata(&mut self, _: FileId) -> Result<Metadata, FileError> {
        Ok(ROOT)
    }

    fn list(
        &mut self,
        _: FileId,
        _: ListPosition,
        _: usize,
    ) -> Result<(Vec<Entry>, Option<ListPosition>), FileError> {
        Ok((Vec::new(), None))
    }

    fn read(&mut self, _: FileId, _: u64, _: &mut [u8]) -> Result<usize, FileError> {
        Ok(0)
    }

    fn write(&mut self, _: FileId, _: u64, _: &[u8]) -> Result<(), FileError> {
        Err(FileError::ReadOnly)
    }

    fn truncate(&mut self, _: FileId, _: u64) -> Result<(), FileError> {
        Err(FileError::ReadOnly)
    }

    fn create(&mut self, _: FileId, _: &[u8]) -> Result<Metadata, FileError> {
        Err(FileError::ReadOnly)
    }

    fn make_directory(&mut self, _: FileId, _: &[u8]) -> Result<Metadata, FileError> {
        Err(FileError::ReadOnly)
    }

    fn remove(&mut self, _: FileId, _: &[u8]) -> Result<Option<FileId>, FileError> {
        Err(FileError::ReadOnly)
    }

    fn rename(&mut self, _: (FileId, &[u8]), _: (FileId, &[u8])) -> Result<Option<FileId>, FileError> {
        Err(FileError::ReadOnly)
    }

    fn release(&mut self, _: FileId) -> Result<(), FileError> {
        Ok(())
    }

    fn space(&self) -> Space {
        Space { total_bytes: 0, free_bytes: 0, total_files: 0, free_files: 0 }
    }

    fn sync(&mut self) -> Result<(), FileError> {
        Ok(())
    }

    fn unmount(&mut self) -> Result<(), FileError> {
        Ok(())
    }
}

/// Runs `main` in a cell with a volume.
fn with_volume<F: Future<Output = ()> + 'static>(main: fn(Volume, Rc<Calls>) -> F) {
    run_task(|| async move {
        let calls = Rc::new(Calls::default());
        let file_system = TimedFileSystem(calls.clone());
        let volume = Volume::start(move || Ok(file_system)).await.unwrap();
        main(volume, calls).await;
    });
}

fn weigh(resource: GridResource, activity: ActivityId, weight: u32) {
    resource.set_entitlement(activity, Entitlement::by_weight(Weight::new(weight).unwrap())).unwrap();
}

/// Looks a name up without end, for an activity, `parallel` times at the same time.
fn load(volume: &Volume, activity: ActivityId, parallel: usize, name: &'static str) {
    for _ in 0..parallel {
        let volume = volume.clone();
        spawn_task_for(activity, async move {
            loop {
                volume.metadata(name).await.unwrap();
            }
        })
        .detach();
    }
}

fn count(calls: &Calls, name: &str) -> usize {
    calls.names.borrow().iter().filter(|called| called.starts_with(name)).count()
}

#[test]
fn activities_get_time_in_proportion_to_their_weights_at_operations_of_different_lengths() {
    with_volume(|volume, calls| async move {
        let activities = ["long", "short", "few"].map(|name| register_activity(name).unwrap());
        for (activity, weight) in activities.iter().zip([50, 33, 17]) {
            weigh(FILES, *activity, weight);
        }
        FILES.set_policy(Some(PolicyKind::Wfq));
        let begun = now();
        for (activity, (parallel, name)) in
            activities.iter().zip([(3, "long.2000"), (30, "short.100"), (2, "few.500")])
        {
            load(&volume, *activity, parallel, name);
        }
        sleep(Duration::from_secs(2)).await;
        let elapsed = now().as_ns() - begun.as_ns();
        let served = activities.map(|activity| volume.scheduled(activity));
        let total: u64 = served.iter().map(|served| served.cost).sum();
        for (served, share) in served.iter().zip([0.50, 0.33, 0.17]) {
            let had = served.cost as f64 / total as f64;
            assert!((had - share).abs() < 0.01, "{had:.4} instead of {share}");
        }
        // Nothing is lost, and nothing counted twice: the time of all activities is that of the volume.
        let operations: u64 = served.iter().map(|served| served.dispatched).sum();
        assert!(calls.names.borrow().len() as u64 + 1 >= operations, "all but the last have ended");
        assert!(total <= elapsed + 10_000_000, "{total} ns of {elapsed} ns");
        let of_calls: u64 = calls.ns.borrow().values().sum();
        assert!(total >= of_calls && of_calls > elapsed / 2, "{total} ns for {of_calls} ns of calls");
        let report = files_report();
        let reported: u64 = report.iter().map(|client| client.cost).sum();
        assert_eq!(reported, total);
        assert!(report.iter().all(|client| client.resource == Resource::Files));
    });
}

#[test]
fn operations_that_never_wait_are_divided_too() {
    with_volume(|volume, _| async move {
        let activities = ["long", "short"].map(|name| register_activity(name).unwrap());
        FILES.set_policy(Some(PolicyKind::Wfq));
        load(&volume, activities[0], 8, "Long.2000");
        load(&volume, activities[1], 4, "Short.100");
        sleep(Duration::from_secs(1)).await;
        let [long, short] = activities.map(|activity| volume.scheduled(activity).cost as f64);
        // If the callers could not run between operations, both would have had the same number.
        let share = short / (long + short);
        assert!((share - 0.5).abs() < 0.03, "{share:.4} instead of 0.5");
    });
}

#[test]
fn an_activity_with_long_operations_in_great_number_leaves_another_its_share() {
    with_volume(|volume, calls| async move {
        let [flood, victim] = ["flood", "victim"].map(|name| register_activity(name).unwrap());
        FILES.set_policy(Some(PolicyKind::Wfq));
        // More than may wait.
        load(&volume, flood, 1500, "flood.1000");
        sleep(Duration::from_millis(20)).await;
        load(&volume, victim, 2, "victim.100");
        let time = |name| calls.ns.borrow().get(&name).copied().unwrap_or(0);
        let before = time('f');
        sleep(Duration::from_secs(1)).await;
        let (flood, served) = (time('f') - before, time('v'));
        // In turns, both would have the same number of operations, and the flood ten times the time.
        let share = served as f64 / (served + flood) as f64;
        assert!((share - 0.5).abs() < 0.05, "{share:.3} for the victim");
        let longest = volume.scheduled(victim).longest_wait_ns;
        assert!(longest < 500_000_000, "waited {longest} ns");
    });
}

#[test]
fn without_a_policy_there_is_no_scheduler_and_activities_take_turns() {
    with_volume(|volume, calls| async move {
        let [one, two] = ["one", "two"].map(|name| register_activity(name).unwrap());
        load(&volume, one, 40, "one.100");
        load(&volume, two, 2, "two.100");
        sleep(Duration::from_millis(200)).await;
        let (ones, twos) = (count(&calls, "one"), count(&calls, "two"));
        assert!(ones > 20 && ones.abs_diff(twos) <= 2, "{ones} and {twos}");
        assert!(files_report().is_empty());
        assert_eq!(volume.scheduled(one).dispatched, 0);
    });
}

#[test]
fn a_limit_holds_and_its_removal_is_followed_at_once() {
    with_volume(|volume, _| async move {
        let slow = register_activity("slow").unwrap();
        let limited = |limit| Entitlement { limit, ..Entitlement::default() };
        // A millisecond per second.
        FILES.set_entitlement(slow, limited(Rate::per_second(1_000_000).ok())).unwrap();
        FILES.set_policy(Some(PolicyKind::Reserve));
        let first = volume.clone();
        spawn_task_for(slow, async move { first.metadata("first.30000").await.unwrap() }).await;
        // It has had the time of half a minute.
        let last = {
            let volume = volume.clone();
            spawn_task_for(slow, async move { volume.metadata("last.0").await.map(drop) })
        };
        let mut last = Box::pin(last);
        assert!(timeout(Duration::from_millis(300), &mut last).await.is_err(), "it waits for the limit");
        let other = register_activity("other").unwrap();
        let read = spawn_task_for(other, {
            let volume = volume.clone();
            async move { volume.metadata("other.0").await.map(drop) }
        });
        timeout(Duration::from_secs(5), read).await.expect("others do not wait").unwrap();
        FILES.set_entitlement(slow, limited(None)).unwrap();
        timeout(Duration::from_secs(5), last).await.expect("the removal holds at once").unwrap();
    });
}

#[test]
fn no_operation_is_lost_or_overtakes_its_activity_while_the_grid_changes_at_random() {
    with_volume(|volume, calls| async move {
        // Fewer than may wait: those that wait for room are not in the order yet.
        const OPERATIONS: usize = 250;
        let mut random = fastrand::Rng::with_seed(17);
        let names = ["a", "b", "c", "d"];
        let activities = names.map(|name| register_activity(name).unwrap());
        let done = Rc::new(Cell::new(0));
        for (activity, name) in activities.iter().zip(names) {
            let (volume, done) = (volume.clone(), done.clone());
            let mut random = random.fork();
            spawn_task_for(*activity, async move {
                // Tasks of an activity begin in the order of their creation, and so do their operations.
                for number in 0..OPERATIONS {
                    let (volume, done) = (volume.clone(), done.clone());
                    let name = format!("{name}-{number}.{}", [0, 0, 50, 200][random.usize(..4)]);
                    spawn_task(async move {
                        volume.metadata(name).await.unwrap();
                        done.set(done.get() + 1);
                    })
                    .detach();
                    if random.u8(..8) == 0 {
                        sleep(Duration::from_micros(random.u64(..2000))).await;
                    }
                }
            })
            .detach();
        }
        let policies = [
            None,
            Some(PolicyKind::Wfq),
            Some(PolicyKind::Fifo),
            Some(PolicyKind::Edf),
            Some(PolicyKind::Priority),
            Some(PolicyKind::Reserve),
        ];
        let begun = now();
        while done.get() < OPERATIONS * names.len() {
            assert!(now() < begun + Duration::from_secs(60), "{} have ended", done.get());
            match random.u8(..6) {
                0 | 1 => FILES.set_policy(policies[random.usize(..policies.len())]),
                2 => PROCESSOR.set_policy(policies[random.usize(..2)]),
                3 => weigh(FILES, activities[random.usize(..4)], random.u32(1..1000)),
                4 => FILES.set_limit(random.bool().then(|| Rate::per_second(900_000_000).unwrap())),
                _ => FILES.set_batch(random.u32(1..5).try_into().unwrap()),
            }
            match random.bool() {
                true => yield_now().await,
                false => sleep(Duration::from_micros(random.u64(..1500))).await,
            }
        }
        for name in names {
            let executed = calls.names.borrow();
            let prefix = format!("{name}-");
            let numbers = executed.iter().filter_map(|called| called.strip_prefix(&prefix));
            let numbers = numbers.map(|rest| rest.split('.').next().unwrap().parse::<usize>().unwrap());
            assert!(numbers.eq(0..OPERATIONS), "the operations of {name} in their order");
        }
    });
}
