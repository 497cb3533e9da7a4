//! Pipes, event counters, timers, poll and epoll.

mod common;

use common::{System, Wakes, now, poll, read, run, write};
use isola_linux_abi::numbers as linux;
use isola_linux_files::{
    AlarmKey, AlarmService, Console, ConsoleOutput, Epoll, EpollEvent, Errno, EventCounter, Events, OpenFile,
    PIPE_CAPACITY, PipeEnd, PollEntry, Timer, TimerSetting, pipe, poll_files, ready_files,
};
use isola_linux_memory::UserBuffer;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;

const NONBLOCK: u32 = linux::O_NONBLOCK;

#[test]
fn a_pipe_moves_bytes_and_ends_with_its_writers() {
    let (reader, writer) = pipe(NONBLOCK).unwrap();
    assert_eq!(read(&reader, 10), Err(Errno::EAGAIN));
    assert_eq!(read(&writer, 10), Err(Errno::EBADF));
    assert_eq!(write(&reader, b"x"), Err(Errno::EBADF));
    assert_eq!(write(&writer, b"hello"), Ok(5));
    assert_eq!(now(reader.seek(0, linux::SEEK_SET)), Err(Errno::ESPIPE));
    assert_eq!(now(reader.read_at(0, &mut UserBuffer::of_bytes(&[0]))), Err(Errno::ESPIPE));
    assert_eq!(read(&reader, 3).unwrap(), b"hel");
    assert_eq!(reader.ready(), Events::IN);
    drop(writer);
    assert_eq!(reader.ready(), Events::IN | Events::HUP);
    assert_eq!(read(&reader, 9).unwrap(), b"lo");
    assert_eq!(read(&reader, 9).unwrap(), b"");
    let (reader, writer) = pipe(0).unwrap();
    drop(reader);
    assert_eq!(writer.ready(), Events::OUT | Events::ERR);
    assert_eq!(write(&writer, b"x"), Err(Errno::EPIPE));
    assert_eq!(pipe(linux::O_DIRECT).unwrap_err(), Errno::EINVAL);
}

#[test]
fn small_writes_to_a_full_pipe_are_not_divided() {
    let (reader, writer) = pipe(NONBLOCK).unwrap();
    assert_eq!(write(&writer, &[1; PIPE_CAPACITY - 100]), Ok(PIPE_CAPACITY - 100));
    assert_eq!(write(&writer, &[2; 101]), Err(Errno::EAGAIN));
    assert_eq!(writer.ready(), Events::NONE);
    assert_eq!(write(&writer, &[3; 5000]), Err(Errno::EAGAIN));
    assert_eq!(write(&writer, &[3; 100]), Ok(100));
    assert_eq!(read(&reader, 4096).unwrap(), [1; 4096]);
    assert_eq!(writer.ready(), Events::OUT);
    let end: &PipeEnd = writer.object_as().unwrap();
    assert_eq!(end.set_capacity(4096), Err(Errno::EBUSY));
    assert_eq!(end.set_capacity(70_000), Ok(131_072));
    assert_eq!(end.set_capacity(1 << 21), Err(Errno::EPERM));
    assert_eq!(end.capacity(), 131_072);
}

#[test]
fn a_blocked_reader_and_writer_continue_each_other() {
    let (reader, writer) = pipe(0).unwrap();
    let wakes = Arc::new(Wakes::default());
    let (mut into, from) = (UserBuffer::of_bytes(&[0; 3]), vec![7; PIPE_CAPACITY + 10]);
    let mut bytes = into.clone();
    let mut reading = Box::pin(reader.read(&mut into));
    assert!(poll(&mut reading, &wakes).is_pending());
    let mut from = UserBuffer::of_bytes(&from);
    let mut writing = Box::pin(writer.write(&mut from));
    assert!(poll(&mut writing, &wakes).is_pending());
    assert_eq!(wakes.count(), 1);
    assert_eq!(poll(&mut reading, &wakes), Poll::Ready(Ok(3)));
    drop(reading);
    assert_eq!(bytes.read_all(), [7; 3]);
    assert_eq!(read(&reader, 5000).unwrap().len(), 5000);
    assert_eq!(wakes.count(), 2);
    assert_eq!(poll(&mut writing, &wakes), Poll::Ready(Ok(PIPE_CAPACITY + 10)));
    // A dropped wait leaves no waker behind.
    let mut into = UserBuffer::of_bytes(&vec![0; PIPE_CAPACITY]);
    now(reader.read(&mut into)).unwrap();
    let mut reading = Box::pin(reader.read(&mut into));
    let before = wakes.count();
    let _ = poll(&mut reading, &wakes);
    drop(reading);
    write(&writer, b"x").unwrap();
    assert_eq!(wakes.count(), before);
}

#[test]
fn a_named_pipe_waits_for_the_other_side() {
    let system = System::new();
    now(system.caller().make_node_at(common::CWD, b"/p", linux::S_IFIFO | 0o666, Default::default()))
        .unwrap();
    assert_eq!(system.open("/p", linux::O_WRONLY | NONBLOCK).unwrap_err(), Errno::ENXIO);
    let wakes = Arc::new(Wakes::default());
    let caller = system.caller();
    let mut opening = Box::pin(caller.open_at(common::CWD, b"/p", linux::O_RDONLY, 0));
    assert!(poll(&mut opening, &wakes).is_pending());
    let writer = system.open("/p", linux::O_WRONLY).unwrap();
    assert_eq!(wakes.count(), 1);
    let Poll::Ready(Ok(reader)) = poll(&mut opening, &wakes) else { panic!("the writer is there") };
    write(&writer, b"through").unwrap();
    assert_eq!(read(&reader, 10).unwrap(), b"through");
    let both = system.open("/p", linux::O_RDWR).unwrap();
    drop((reader, writer));
    assert_eq!(write(&both, b"self"), Ok(4));
    assert_eq!(read(&both, 4).unwrap(), b"self");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_pipe_is_a_queue(steps in prop::collection::vec((any::<bool>(), 0usize..20_000), 1..60)) {
        let (reader, writer) = pipe(NONBLOCK).unwrap();
        let (mut model, mut next) = (VecDeque::new(), 0_u8);
        for (is_write, len) in steps {
            if is_write {
                let bytes: Vec<_> = (0..len).map(|at| next.wrapping_add((at % 251) as u8)).collect();
                // How much fits depends on earlier writes, as on the host: `splice_as_host` compares it.
                let has_room = writer.ready() == Events::OUT;
                let count = write(&writer, &bytes);
                match count {
                    Ok(0) => prop_assert_eq!(len, 0),
                    Ok(count) if len <= 4096 => prop_assert_eq!(count, len),
                    Ok(count) => prop_assert!(count <= len && model.len() + count <= PIPE_CAPACITY),
                    Err(error) => prop_assert!(error == Errno::EAGAIN && !has_room && model.len() > PIPE_CAPACITY / 2),
                }
                model.extend(&bytes[..count.unwrap_or(0)]);
                next = next.wrapping_add(17);
            } else {
                let expected: Vec<_> = model.iter().copied().take(len).collect();
                match read(&reader, len) {
                    Ok(bytes) => prop_assert_eq!(&bytes, &expected),
                    Err(error) => prop_assert!(error == Errno::EAGAIN && expected.is_empty() && len > 0),
                }
                model.drain(..expected.len());
            }
        }
    }
}

fn number(file: &OpenFile) -> Result<u64, Errno> {
    read(file, 8).map(|bytes| u64::from_ne_bytes(bytes.try_into().unwrap()))
}

#[test]
fn an_event_counter_counts_and_a_semaphore_takes_one() {
    let counter = EventCounter::open(3, linux::EFD_NONBLOCK).unwrap();
    assert_eq!(write(&counter, &4_u64.to_ne_bytes()), Ok(8));
    assert_eq!(write(&counter, &[0; 7]), Err(Errno::EINVAL));
    assert_eq!(write(&counter, &u64::MAX.to_ne_bytes()), Err(Errno::EINVAL));
    assert_eq!(write(&counter, &(u64::MAX - 1).to_ne_bytes()), Err(Errno::EAGAIN));
    assert_eq!(read(&counter, 7), Err(Errno::EINVAL));
    assert_eq!((number(&counter), number(&counter)), (Ok(7), Err(Errno::EAGAIN)));
    let semaphore = EventCounter::open(2, linux::EFD_SEMAPHORE | linux::EFD_NONBLOCK).unwrap();
    assert_eq!(
        (number(&semaphore), number(&semaphore), number(&semaphore)),
        (Ok(1), Ok(1), Err(Errno::EAGAIN))
    );
    assert_eq!(EventCounter::open(0, 2).unwrap_err(), Errno::EINVAL);
    let full = EventCounter::open(0, 0).unwrap();
    assert_eq!(write(&full, &(u64::MAX - 1).to_ne_bytes()), Ok(8));
    assert_eq!(full.ready(), Events::IN);
}

/// An alarm, and the call when it is reached.
type TestAlarm = (AlarmKey, Box<dyn FnOnce() + Send>);

/// A clock that a test sets, with its alarms.
#[derive(Default)]
struct TestClock {
    now: AtomicU64,
    set: AtomicU64,
    alarms: Mutex<Vec<TestAlarm>>,
}

impl AlarmService for TestClock {
    fn now_ns(&self, clock: u32) -> Option<u64> {
        (clock < 2).then(|| self.now.load(Ordering::SeqCst))
    }

    fn set_alarm(&self, _clock: u32, deadline_ns: u64, ring: Box<dyn FnOnce() + Send>) -> AlarmKey {
        let mut alarms = self.alarms.lock().unwrap();
        let number = self.set.fetch_add(1, Ordering::SeqCst);
        alarms.push((AlarmKey { deadline_ns, number }, ring));
        alarms[alarms.len() - 1].0
    }

    fn cancel_alarm(&self, alarm: AlarmKey) {
        self.alarms.lock().unwrap().retain(|(other, _)| *other != alarm);
    }
}

impl TestClock {
    fn advance(&self, now: u64) {
        self.now.store(now, Ordering::SeqCst);
        let due: Vec<_> =
            self.alarms.lock().unwrap().extract_if(.., |(alarm, _)| alarm.deadline_ns <= now).collect();
        due.into_iter().for_each(|(_, ring)| ring());
    }
}

#[test]
fn a_timer_counts_its_expirations_and_wakes_its_reader() {
    let clock = Arc::new(TestClock::default());
    assert_eq!(Timer::open(clock.clone(), 9, 0).unwrap_err(), Errno::EINVAL);
    let file = Timer::open(clock.clone(), 1, 0).unwrap();
    let timer: &Timer = file.object_as().unwrap();
    let wakes = Arc::new(Wakes::default());
    let setting = TimerSetting { value_ns: 1_000_000, interval_ns: 200_000 };
    assert_eq!(timer.set(setting, 0), Ok(TimerSetting::default()));
    let mut into = UserBuffer::of_bytes(&[0; 8]);
    let mut bytes = into.clone();
    let mut reading = Box::pin(file.read(&mut into));
    assert!(poll(&mut reading, &wakes).is_pending());
    clock.advance(999_999);
    assert_eq!(wakes.count(), 0);
    clock.advance(1_450_000);
    assert_eq!(wakes.count(), 1);
    assert_eq!(poll(&mut reading, &wakes), Poll::Ready(Ok(8)));
    drop(reading);
    assert_eq!(bytes.read_all(), 3_u64.to_ne_bytes());
    assert_eq!(timer.setting(), TimerSetting { value_ns: 150_000, interval_ns: 200_000 });
    // Without a read, one alarm rings.
    clock.advance(3_000_000);
    assert_eq!((clock.alarms.lock().unwrap().len(), file.ready()), (0, Events::IN));
    assert_eq!((number(&file), file.ready()), (Ok(8), Events::NONE));
    assert_eq!(clock.alarms.lock().unwrap().len(), 1);
    // An alarm of an earlier setting has no effect.
    timer.set(TimerSetting::default(), 0).unwrap();
    assert_eq!(clock.alarms.lock().unwrap().len(), 0);
    clock.advance(9_000_000);
    assert_eq!(file.ready(), Events::NONE);
    timer.set(TimerSetting { value_ns: 5, interval_ns: 0 }, linux::TFD_TIMER_ABSTIME).unwrap();
    assert_eq!((file.ready(), number(&file)), (Events::IN, Ok(1)));
    assert_eq!(timer.set(setting, 0x80), Err(Errno::EINVAL));
    timer.set(setting, 0).unwrap();
    drop(file);
    assert_eq!(clock.alarms.lock().unwrap().len(), 0, "a closed timer has no alarm");
}

#[test]
fn poll_returns_the_events_of_all_files_and_leaves_no_waker() {
    let (reader, writer) = pipe(0).unwrap();
    let entries = [
        PollEntry { file: Some(reader.clone()), events: Events::IN },
        PollEntry { file: None, events: Events::IN },
        PollEntry { file: Some(writer.clone()), events: Events::IN },
    ];
    let wakes = Arc::new(Wakes::default());
    let mut polling = poll_files(&entries);
    assert!(poll(&mut polling, &wakes).is_pending() && poll(&mut polling, &wakes).is_pending());
    write(&writer, b"x").unwrap();
    assert!(wakes.count() >= 1);
    assert_eq!(poll(&mut polling, &wakes), Poll::Ready(vec![Events::IN, Events::NONE, Events::NONE]));
    drop(polling);
    let count = wakes.count();
    write(&writer, b"y").unwrap();
    assert_eq!(wakes.count(), count);
    drop(reader);
    let entries = [PollEntry { file: Some(writer), events: Events::NONE }];
    // The other end is an entry of the first poll.
    assert_eq!(ready_files(&entries), (vec![Events::NONE], false));
}

fn epoll() -> Arc<OpenFile> {
    Epoll::open(0).unwrap()
}

fn of(file: &Arc<OpenFile>) -> &Epoll {
    file.object_as().unwrap()
}

fn take(file: &Arc<OpenFile>) -> Vec<(u32, u64)> {
    let mut events = Vec::new();
    let count = of(file).take(10, |event| events.push((event.events, event.data)));
    assert_eq!(count, events.len());
    events
}

const IN: u32 = linux::EPOLLIN;

#[test]
fn level_edge_and_one_shot_entries_differ() {
    let set = epoll();
    let (reader, writer) = pipe(NONBLOCK).unwrap();
    let event = |events, data| EpollEvent { events, data };
    write(&writer, b"x").unwrap();
    of(&set).add(3, &reader, event(IN, 1)).unwrap();
    assert_eq!(of(&set).add(3, &reader, event(IN, 1)), Err(Errno::EEXIST));
    of(&set).add(4, &reader, event(IN | linux::EPOLLET, 2)).unwrap();
    of(&set).add(5, &reader, event(IN | linux::EPOLLONESHOT, 3)).unwrap();
    assert_eq!(take(&set), [(IN, 1), (IN, 2), (IN, 3)]);
    assert_eq!(take(&set), [(IN, 1)]);
    write(&writer, b"y").unwrap();
    let mut again = take(&set);
    again.sort();
    assert_eq!(again, [(IN, 1), (IN, 2)]);
    of(&set).modify(5, &reader, event(IN | linux::EPOLLONESHOT, 4)).unwrap();
    let mut again = take(&set);
    again.sort();
    assert_eq!(again, [(IN, 1), (IN, 4)]);
    read(&reader, 10).unwrap();
    assert_eq!(take(&set), []);
    assert_eq!(set.ready(), Events::NONE);
    of(&set).delete(3, &reader).unwrap();
    assert_eq!(of(&set).delete(3, &reader), Err(Errno::ENOENT));
    assert_eq!(of(&set).modify(9, &reader, event(IN, 1)), Err(Errno::ENOENT));
    drop(writer);
    assert_eq!(take(&set), [(linux::EPOLLHUP, 2)]);
    let event = EpollEvent { events: 0x8000_0001, data: u64::MAX - 5 };
    assert_eq!(EpollEvent::of_bytes(event.bytes()), event);
}

#[test]
fn a_wait_for_an_event_poll_ends_with_the_event() {
    let set = epoll();
    let (reader, writer) = pipe(0).unwrap();
    of(&set).add(3, &reader, EpollEvent { events: IN, data: 9 }).unwrap();
    let wakes = Arc::new(Wakes::default());
    let mut waiting = Box::pin(of(&set).wait(4));
    assert!(poll(&mut waiting, &wakes).is_pending());
    write(&writer, b"x").unwrap();
    assert_eq!(wakes.count(), 1);
    assert_eq!(poll(&mut waiting, &wakes), Poll::Ready(vec![EpollEvent { events: IN, data: 9 }]));
}

#[test]
fn an_entry_ends_with_its_file() {
    let set = epoll();
    let (reader, writer) = pipe(0).unwrap();
    of(&set).add(3, &reader, EpollEvent { events: IN, data: 1 }).unwrap();
    write(&writer, b"x").unwrap();
    drop(reader);
    assert_eq!(take(&set), []);
    // The descriptor and another file can be added.
    let (reader, _writer) = pipe(0).unwrap();
    of(&set).add(3, &reader, EpollEvent { events: IN, data: 1 }).unwrap();
}

#[test]
fn one_of_several_exclusive_event_polls_is_woken() {
    let (reader, writer) = pipe(NONBLOCK).unwrap();
    let sets: Vec<_> = (0..3).map(|_| epoll()).collect();
    let wakes: Vec<_> = (0..3).map(|_| Arc::new(Wakes::default())).collect();
    for set in &sets {
        let event = EpollEvent { events: IN | linux::EPOLLEXCLUSIVE, data: 1 };
        of(set).add(3, &reader, event).unwrap();
        assert_eq!(of(set).modify(3, &reader, event), Err(Errno::EINVAL));
    }
    for expected in 1..=3 {
        let mut waits: Vec<_> = sets.iter().map(|set| Box::pin(of(set).wait(1))).collect();
        for (wait, wakes) in waits.iter_mut().zip(&wakes) {
            assert!(poll(wait, wakes).is_pending());
        }
        write(&writer, b"x").unwrap();
        assert_eq!(wakes.iter().map(|wakes| wakes.count()).sum::<usize>(), expected);
        read(&reader, 1).unwrap();
    }
    // They take turns.
    assert!(wakes.iter().all(|wakes| wakes.count() == 1));
    let wrong = EpollEvent { events: IN | linux::EPOLLEXCLUSIVE | linux::EPOLLONESHOT, data: 1 };
    assert_eq!(of(&epoll()).add(3, &reader, wrong), Err(Errno::EINVAL));
}

#[test]
fn event_polls_contain_each_other_up_to_five_and_without_loops() {
    let event = EpollEvent { events: IN, data: 1 };
    let sets: Vec<_> = (0..6).map(|_| epoll()).collect();
    assert_eq!(of(&sets[0]).add(3, &sets[0], event), Err(Errno::EINVAL));
    for index in 0..4 {
        of(&sets[index]).add(3, &sets[index + 1], event).unwrap();
    }
    assert_eq!(of(&sets[4]).add(3, &sets[5], event), Err(Errno::ELOOP));
    assert_eq!(of(&sets[5]).add(3, &sets[0], event), Err(Errno::ELOOP));
    assert_eq!(of(&sets[4]).add(3, &sets[0], event), Err(Errno::ELOOP));
    let (reader, writer) = pipe(0).unwrap();
    of(&sets[4]).add(3, &reader, event).unwrap();
    let wakes = Arc::new(Wakes::default());
    let mut waiting = Box::pin(of(&sets[0]).wait(1));
    assert!(poll(&mut waiting, &wakes).is_pending());
    write(&writer, b"x").unwrap();
    assert!(wakes.count() > 0);
    assert!(poll(&mut waiting, &wakes).is_ready());
    let system = System::new();
    system.write_file("/f", b"").unwrap();
    let file = system.open("/f", 0).unwrap();
    assert_eq!(of(&sets[0]).add(9, &file, event), Err(Errno::EPERM));
}

#[test]
fn threads_pass_bytes_through_a_pipe_and_an_event_poll() {
    const LEN: usize = 300_000;
    let (reader, writer) = pipe(NONBLOCK).unwrap();
    let set = epoll();
    of(&set).add(3, &reader, EpollEvent { events: IN | linux::EPOLLET, data: 0 }).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut sent = 0;
            while sent < LEN {
                match write(&writer, &vec![1; (LEN - sent).min(3000)]) {
                    Ok(count) => sent += count,
                    Err(error) => assert_eq!(error, Errno::EAGAIN),
                }
            }
        });
        let mut received = 0;
        while received < LEN {
            run(of(&set).wait(1));
            while let Ok(bytes) = read(&reader, 5000) {
                received += bytes.len();
                if bytes.is_empty() {
                    break;
                }
            }
        }
        assert_eq!(received, LEN);
    });
}

#[derive(Default)]
struct Output(Mutex<Vec<u8>>);

impl ConsoleOutput for Output {
    fn write(&self, bytes: &[u8]) {
        self.0.lock().unwrap().extend_from_slice(bytes);
    }
}

#[test]
fn the_console_is_no_terminal() {
    let output = Arc::new(Output::default());
    let file = Console::new(output.clone()).open();
    assert_eq!(write(&file, &[b'a'; 3000]), Ok(3000));
    assert_eq!(output.0.lock().unwrap().len(), 3000);
    assert_eq!(read(&file, 5).unwrap(), b"");
    let request = isola_linux_abi::requests::TCGETS;
    assert_eq!(now(file.control(request, 0, &mut UserBuffer::default())), Err(Errno::ENOTTY));
}

#[test]
fn a_waiter_is_woken_once_until_it_waits_again() {
    let epoll = Epoll::open(0).unwrap();
    let poll_of = epoll.object_as::<Epoll>().unwrap();
    let counters: Vec<_> = (0..3).map(|_| EventCounter::open(0, 0).unwrap()).collect();
    for (descriptor, counter) in counters.iter().enumerate() {
        let event = EpollEvent { events: linux::EPOLLIN, data: descriptor as u64 };
        poll_of.add(descriptor as i32, counter, event).unwrap();
    }
    let wakes = Arc::new(Wakes::default());
    let mut waiting = Box::pin(poll_of.wait(8));
    for round in 1..=2 {
        assert_eq!(poll(&mut waiting, &wakes), Poll::Pending);
        for counter in &counters {
            write(counter, &1_u64.to_ne_bytes()).unwrap();
        }
        assert_eq!(wakes.count(), round);
        // All is read before the waiter runs: it waits again, and the next event wakes it.
        for counter in &counters {
            read(counter, 8).unwrap();
        }
    }
    assert_eq!(poll(&mut waiting, &wakes), Poll::Pending);
    write(&counters[1], &1_u64.to_ne_bytes()).unwrap();
    let Poll::Ready(events) = poll(&mut waiting, &wakes) else { panic!("an event is ready") };
    assert_eq!(events.iter().map(|event| event.data).collect::<Vec<_>>(), [1]);
}
