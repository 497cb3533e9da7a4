//! Channels between two cells in one process: honest and hostile peers, and an end at each step.

use isola_abi::id::PhysRange;
use isola_abi::links::{LinkDemand, LinkRefusal, LinkState, Survival, service_name};
use isola_channels::{
    Channel, ChannelError, Delivery, LinkAccess, MOST_RING_PAGES, MOST_SHARED_PAGES, Message, READS_IN_A_ROW,
    RingSizes, SharedMemory, listen, listen_with, multicast, open, open_with,
};
use isola_events::{sleep, spawn_task, timeout, yield_now};
use isola_link_sim::{Machine, Port};
use isola_platform::LinkPort;
use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

/// Runs a service in a cell `kv` until `client`, in the cell `web`, ends.
fn with_service<S, C>(
    serve: impl Fn(&'static Port) -> S + Send + Sync + 'static,
    client: impl Fn(&'static Port) -> C + Send + Sync + 'static,
) where
    S: Future<Output = ()> + 'static,
    C: Future<Output = ()> + 'static,
{
    let machine = Machine::new();
    let is_over = Arc::new(AtomicBool::new(false));
    let over = is_over.clone();
    let serving = machine.start("kv", move |port| {
        spawn_task(serve(port)).detach();
        let over = over.clone();
        async move {
            while !over.load(Ordering::Acquire) {
                sleep(Duration::from_millis(1)).await;
            }
        }
    });
    let ended = machine.start("web", client).join();
    is_over.store(true, Ordering::Release);
    serving.join().expect("the service ends");
    ended.expect("the client ends");
}

/// Opens a channel as soon as the service listens.
async fn reach(name: &str) -> Channel {
    loop {
        match open(name).await {
            Ok(channel) => return channel,
            Err(ChannelError::Closed) => sleep(Duration::from_millis(1)).await,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Accepts channels of a service, and serves each by a task.
async fn serve<F: Future<Output = Result<(), ChannelError>> + 'static>(
    service: &str,
    with: impl Fn(Channel) -> F,
) {
    let listener = listen(service).expect("nobody else listens");
    loop {
        if let Ok(channel) = listener.accept().await {
            let serving = with(channel);
            spawn_task(async move { serving.await.map_or((), |()| ()) }).detach();
        }
    }
}

async fn echo(channel: Channel) -> Result<(), ChannelError> {
    loop {
        let packet = channel.read().await?;
        channel.write(&packet).await?;
    }
}

/// Adds 1 to the last word of the peer's memory for each packet.
async fn add(channel: Channel) -> Result<(), ChannelError> {
    let memory = channel.mapped().await?;
    loop {
        let packet = channel.read().await?;
        let last = memory.len() - 1;
        let stored = memory.store(last, memory.load(last).unwrap_or_default() + 1);
        channel.write(if stored { &packet } else { b"read-only" }).await?;
    }
}

/// Waits until a cell has so many links.
async fn has_links(port: &Port, count: usize) {
    let began = Instant::now();
    while port.links_in_use() != count {
        assert!(began.elapsed() < Duration::from_secs(20), "{} links are left", port.links_in_use());
        sleep(Duration::from_millis(1)).await;
    }
}

#[test]
fn each_task_gets_the_answer_to_its_own_request() {
    with_service(
        |_| serve("echo", echo),
        |port| async move {
            let channels = [reach("kv/echo").await, reach("kv/echo").await, reach("kv/echo").await];
            port.answer_late();
            let mapping = Rc::new(Cell::new(channels.len()));
            for (index, channel) in (0..).zip(channels) {
                let mapping = mapping.clone();
                spawn_task(async move {
                    // Each sends its request between the answer to the one before and that answer's doorbell.
                    sleep(Duration::from_millis(3 * index)).await;
                    channel.map(&SharedMemory::new(1).unwrap(), LinkAccess::Read).await.unwrap();
                    mapping.set(mapping.get() - 1);
                })
                .detach();
            }
            let all_are_mapped = async {
                while mapping.get() > 0 {
                    sleep(Duration::from_millis(1)).await;
                }
            };
            timeout(Duration::from_secs(20), all_are_mapped).await.expect("all requests are answered");
            has_links(port, 0).await;
        },
    );
}

#[test]
fn packets_arrive_and_slots_are_free_again() {
    with_service(
        |_| serve("echo", echo),
        |port| async move {
            let channel = reach("kv/echo").await;
            for len in (0..200).chain([1000, channel.most_bytes()]) {
                let packet: Vec<u8> = (0..len).map(|index| (index * 7 + len) as u8).collect();
                channel.write(&packet).await.unwrap();
                assert_eq!(channel.read().await.unwrap(), packet, "{len} bytes");
            }
            assert_eq!(channel.try_read_message(), Ok(None));
            for number in 0..100 {
                // The service frees room when it waits, soon after it has answered.
                while channel.try_write_message(&Message::new([number; 7])) != Delivery::Sent {
                    yield_now().await;
                }
                let message = loop {
                    match channel.try_read_message().unwrap() {
                        Some(message) => break message,
                        None => yield_now().await,
                    }
                };
                assert_eq!(message.words(), &[number; 7]);
            }
            drop(channel);
            has_links(port, 0).await;
            // A caller that loses interest leaves no link behind.
            for _ in 0..20 {
                let _ = timeout(Duration::ZERO, open("kv/echo")).await;
            }
            has_links(port, 0).await;
        },
    );
}

/// The rounds between two readers, and the time for which they poll: longer than any wait in a test.
const POLLED_ROUNDS: usize = 200;

/// The time for an answer in which a reader that does not poll begins to wait.
const SLOW_ANSWER: Duration = Duration::from_millis(1);
const LONG_POLLING: Duration = Duration::from_secs(60);

/// Returns the doorbells that a client gets in [`POLLED_ROUNDS`] rounds if its reader polls for so long, and each answer takes
/// so long. Its core has no other work, which would end a poll.
fn doorbells_of_rounds(polling_time: Duration, answer_time: Duration) -> usize {
    let doorbells = Arc::new(AtomicUsize::new(0));
    let counted = doorbells.clone();
    with_service(
        move |port| {
            let counted = counted.clone();
            serve("echo", move |channel| {
                let counted = counted.clone();
                async move {
                    let before = port.doorbells();
                    for _ in 0..POLLED_ROUNDS {
                        let packet = channel.read().await?;
                        if !answer_time.is_zero() {
                            sleep(answer_time).await;
                        }
                        channel.write(&packet).await?;
                    }
                    counted.store(port.doorbells() - before, Ordering::Relaxed);
                    channel.finish().await
                }
            })
        },
        move |_| async move {
            let channel = reach("kv/echo").await;
            channel.set_polling_time(polling_time);
            for round in 0..POLLED_ROUNDS {
                channel.write(&[round as u8; 64]).await.unwrap();
                assert_eq!(channel.read().await.unwrap(), [round as u8; 64]);
            }
            assert_eq!(channel.read().await.unwrap(), [], "the service has counted");
        },
    );
    doorbells.load(Ordering::Relaxed)
}

#[test]
fn a_reader_with_short_waits_polls_and_needs_no_doorbells() {
    let polled = doorbells_of_rounds(LONG_POLLING, Duration::ZERO);
    assert!(polled < POLLED_ROUNDS / 4, "{polled} doorbells in {POLLED_ROUNDS} rounds");
    // On a busy host, a reader may be slow to wait, and get a packet without a doorbell.
    let waited = doorbells_of_rounds(Duration::ZERO, SLOW_ANSWER);
    assert!(waited > POLLED_ROUNDS / 2, "{waited} doorbells without polling, {polled} with it");
}

#[test]
fn a_change_of_one_link_wakes_no_task_of_another() {
    static IS_OVER: AtomicBool = AtomicBool::new(false);
    let until_over = |channel| async move {
        while !IS_OVER.load(Ordering::Acquire) {
            sleep(Duration::from_millis(1)).await;
        }
        drop(channel);
        Ok(())
    };
    let serve_both = move |_| async move {
        spawn_task(serve("watched", until_over)).detach();
        serve("echo", echo).await;
    };
    with_service(serve_both, |port| async move {
        let channel = reach("kv/watched").await;
        let polls = Rc::new(Cell::new(0));
        let counted = polls.clone();
        let watching = spawn_task(async move {
            let mut closed = pin!(channel.closed());
            poll_fn(|context| {
                counted.set(counted.get() + 1);
                closed.as_mut().poll(context)
            })
            .await;
        });
        for _ in 0..20 {
            drop(reach("kv/echo").await);
        }
        has_links(port, 1).await;
        assert_eq!(polls.get(), 1);
        IS_OVER.store(true, Ordering::Release);
        watching.await;
        assert_eq!(polls.get(), 2);
    });
}

#[test]
fn memory_of_several_pages_is_shared_revoked_and_zeroed_before_it_is_used_again() {
    with_service(
        |_| serve("add", add),
        |_| async {
            assert_eq!(
                SharedMemory::new(0).err(),
                Some(ChannelError::BadSize { most_pages: MOST_SHARED_PAGES })
            );
            assert!(SharedMemory::new(MOST_SHARED_PAGES + 1).is_err());
            assert_eq!(SharedMemory::new(MOST_SHARED_PAGES).unwrap().pages(), MOST_SHARED_PAGES);
            for pages in [1, 3, 100] {
                let memory = SharedMemory::new(pages).unwrap();
                let last = memory.words().last().unwrap();
                for (access, answer, sum) in
                    [(LinkAccess::ReadWrite, &b"add"[..], 41), (LinkAccess::Read, b"read-only", 40)]
                {
                    let adder = reach("kv/add").await;
                    last.store(40, Ordering::Release);
                    adder.map(&memory, access).await.unwrap();
                    adder.write(b"add").await.unwrap();
                    assert_eq!(adder.read().await.unwrap(), answer);
                    assert_eq!(last.load(Ordering::Acquire), sum, "{pages} pages");
                    adder.unmap().await.unwrap();
                }
                let words = memory.words().as_ptr();
                drop(memory);
                let again = SharedMemory::new(pages).unwrap();
                assert_eq!(again.words().as_ptr(), words, "the pool has it");
                assert!(again.words().iter().all(|word| word.load(Ordering::Relaxed) == 0));
            }
        },
    );
}

#[test]
fn memory_that_is_shared_again_between_two_doorbells_wakes_the_task_that_waits_for_it() {
    static STEP: AtomicUsize = AtomicUsize::new(0);
    struct Woken(AtomicBool);
    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Release);
        }
    }
    let share_twice = |channel: Channel| async move {
        let until = |step| async move {
            while STEP.load(Ordering::Acquire) != step {
                sleep(Duration::from_millis(1)).await;
            }
        };
        let memory = SharedMemory::new(1)?;
        channel.map(&memory, LinkAccess::Read).await?;
        until(1).await;
        channel.unmap().await?;
        STEP.store(2, Ordering::Release);
        until(3).await;
        channel.map(&memory, LinkAccess::Read).await?;
        STEP.store(4, Ordering::Release);
        channel.closed().await;
        Ok(())
    };
    // The core takes no doorbell meanwhile, as the event does not end.
    let wait_in_event = |step| {
        let began = Instant::now();
        while STEP.load(Ordering::Acquire) != step {
            assert!(began.elapsed() < Duration::from_secs(20), "the service did not do step {step}");
            std::thread::yield_now();
        }
    };
    with_service(
        move |_| serve("memory", share_twice),
        move |_| async move {
            let channel = reach("kv/memory").await;
            drop(channel.mapped().await.unwrap());
            // The core takes the doorbell of the first sharing.
            sleep(Duration::from_millis(10)).await;
            STEP.store(1, Ordering::Release);
            wait_in_event(2);
            let woken = Arc::new(Woken(AtomicBool::new(false)));
            let waker = Waker::from(woken.clone());
            let mut waiting = pin!(channel.mapped());
            assert!(waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending(), "it is revoked");
            STEP.store(3, Ordering::Release);
            wait_in_event(4);
            let is_woken = async {
                while !woken.0.load(Ordering::Acquire) {
                    sleep(Duration::from_millis(1)).await;
                }
            };
            assert!(timeout(Duration::from_secs(20), is_woken).await.is_ok(), "the task is not woken");
            assert!(waiting.await.is_ok());
        },
    );
}

#[test]
fn shared_memory_is_never_memory_of_the_image() {
    with_service(
        |_| serve("echo", echo),
        |port| async move {
            port.allocate_in_image(40);
            let memory = SharedMemory::new(2).unwrap();
            assert_eq!(port.image_blocks(), 0, "those were left to the heap");
            assert!(port.can_share(memory.words()));
        },
    );
}

#[test]
fn memory_that_a_peer_maps_is_not_used_again() {
    with_service(
        |_| serve("add", add),
        |_| async {
            let adder = reach("kv/add").await;
            let memory = SharedMemory::new(1).unwrap();
            let words = memory.words();
            adder.map(&memory, LinkAccess::ReadWrite).await.unwrap();
            drop(memory);
            assert_ne!(SharedMemory::new(1).unwrap().words().as_ptr(), words.as_ptr());
            let other = SharedMemory::new(1).unwrap();
            adder.map(&other, LinkAccess::ReadWrite).await.unwrap();
            let taken: Vec<_> = (0..3).map(|_| SharedMemory::new(1).unwrap()).collect();
            assert!(taken.iter().any(|memory| memory.words().as_ptr() == words.as_ptr()), "it was replaced");
        },
    );
}

#[test]
fn contents_survive_their_owner_if_it_permits_that() {
    for survives in [true, false] {
        let machine = Machine::new();
        let owner = machine.start("kv", move |_| async move {
            let channel = listen("state").unwrap().accept().await.unwrap();
            let memory = SharedMemory::new(3).unwrap();
            memory.words()[1535].store(7, Ordering::Release);
            if survives {
                channel.map_surviving(&memory).await.unwrap();
            } else {
                channel.map(&memory, LinkAccess::Read).await.unwrap();
            }
            // The peer has asked for the copy, or was refused.
            channel.read_message().await.unwrap();
        });
        let reader = machine.start("web", move |port| async move {
            let channel = reach("kv/state").await;
            let memory = channel.mapped().await.unwrap();
            let kept = memory.keep().await;
            let refused = Err(ChannelError::Refused(LinkRefusal::NotSurviving));
            assert_eq!(kept, if survives { Ok(()) } else { refused });
            channel.write_message(&Message::default()).await.unwrap();
            channel.closed().await;
            // The memory is revoked after the link is closed, and before any later request is answered.
            assert!(matches!(memory.keep().await, Err(ChannelError::Refused(_))), "there is no peer");
            assert_eq!(memory.load(1535), Some(if survives { 7 } else { 0 }));
            let taken = SharedMemory::new(3).unwrap().words().as_ptr();
            drop((channel, memory));
            has_links(port, 0).await;
            assert_ne!(SharedMemory::new(3).unwrap().words().as_ptr(), taken, "the copy is free again");
        });
        owner.join().unwrap();
        reader.join().unwrap();
    }
}

#[test]
fn rings_have_the_chosen_size_within_limits() {
    with_service(
        |_| async {
            let listener = listen_with("big", RingSizes { pages: 64, most_peer_pages: 64 }).unwrap();
            loop {
                if let Ok(channel) = listener.accept().await {
                    spawn_task(async move { echo(channel).await.map_or((), |()| ()) }).detach();
                }
            }
        },
        |port| async move {
            for pages in [0, MOST_RING_PAGES + 1] {
                let sizes = RingSizes { pages, ..RingSizes::default() };
                let error = ChannelError::BadSize { most_pages: MOST_RING_PAGES };
                assert_eq!(open_with("kv/big", sizes).await.err(), Some(error));
            }
            while open("kv/big").await.err() != Some(ChannelError::PeerRing) {
                sleep(Duration::from_millis(1)).await;
            }
            let sizes = RingSizes { pages: 64, most_peer_pages: 64 };
            let channel = open_with("kv/big", sizes).await.unwrap();
            assert_eq!(channel.most_bytes(), (128 << 10) - 8);
            let packet = vec![7; channel.most_bytes()];
            channel.write(&packet).await.unwrap();
            assert_eq!(channel.read().await.unwrap(), packet);
            drop(channel);
            // The service accepts no ring beyond its limit.
            let sizes = RingSizes { pages: 65, most_peer_pages: 64 };
            let refused = open_with("kv/big", sizes).await;
            if let Ok(channel) = refused {
                assert_eq!(channel.read().await, Err(ChannelError::Closed));
            }
            has_links(port, 0).await;
        },
    );
}

#[test]
fn a_member_that_does_not_read_delays_no_other() {
    let heard = Arc::new(Mutex::new(Vec::new()));
    let all = heard.clone();
    with_service(
        move |_| {
            let heard = heard.clone();
            async move {
                let reading = serve("hear", move |channel| {
                    let heard = heard.clone();
                    async move {
                        loop {
                            let message = channel.read_message().await?;
                            heard.lock().unwrap().push(message.words()[0]);
                        }
                    }
                });
                spawn_task(reading).detach();
                serve("deaf", |channel| async move {
                    channel.closed().await;
                    Ok(())
                })
                .await;
            }
        },
        move |_| {
            let heard = all.clone();
            async move {
                let mut channels = Vec::new();
                for member in 0..7 {
                    channels.push(reach(if member == 3 { "kv/deaf" } else { "kv/hear" }).await);
                }
                for round in 0..200 {
                    let deliveries = multicast(&channels, &Message::new([round; 7]));
                    for (member, delivery) in deliveries.iter().enumerate() {
                        let is_full = member == 3 && round >= 128;
                        let expected = if is_full { Delivery::Full } else { Delivery::Sent };
                        assert_eq!(*delivery, expected, "member {member}, round {round}");
                    }
                    while heard.lock().unwrap().len() < 6 * (round as usize + 1) {
                        yield_now().await;
                    }
                }
                assert_eq!(channels[3].try_write_message(&Message::default()), Delivery::Full);
                drop(channels.remove(0));
                assert_eq!(multicast(channels.iter().take(2), &Message::default()), [Delivery::Sent; 2]);
            }
        },
    );
}

#[test]
fn a_flood_of_messages_is_one_doorbell_and_leaves_turns_to_other_tasks() {
    const MESSAGES: u64 = 1600;
    let sizes = RingSizes { pages: 64, most_peer_pages: 64 };
    let machine = Machine::new();
    let is_sent = Arc::new(AtomicBool::new(false));
    let sent = is_sent.clone();
    let flooded = machine.start("kv", move |_| {
        let sent = sent.clone();
        async move {
            let channel = listen_with("flood", sizes).unwrap().accept().await.unwrap();
            while !sent.load(Ordering::Acquire) {
                sleep(Duration::from_millis(1)).await;
            }
            let turns = Arc::new(AtomicU64::new(0));
            let others = turns.clone();
            let other = async move {
                loop {
                    others.fetch_add(1, Ordering::Relaxed);
                    yield_now().await;
                }
            };
            spawn_task(other).detach();
            for number in 0..MESSAGES {
                assert_eq!(channel.read_message().await.unwrap().words()[0], number);
            }
            let turns = turns.load(Ordering::Relaxed);
            let fewest = MESSAGES / u64::from(READS_IN_A_ROW) - 1;
            assert!((fewest..2 * fewest).contains(&turns), "{turns} turns of another task");
        }
    });
    let flooding = machine.start("evil", move |port| {
        let is_sent = is_sent.clone();
        async move {
            let channel = loop {
                match open_with("kv/flood", sizes).await {
                    Ok(channel) => break channel,
                    Err(_) => sleep(Duration::from_millis(1)).await,
                }
            };
            for number in 0..MESSAGES {
                assert_eq!(channel.try_write_message(&Message::new([number; 7])), Delivery::Sent);
            }
            assert!(port.doorbells() <= 1, "{} doorbells", port.doorbells());
            is_sent.store(true, Ordering::Release);
            channel.closed().await;
        }
    });
    flooded.join().unwrap();
    flooding.join().unwrap();
}

#[test]
fn a_peer_that_dies_at_any_step_ends_every_operation() {
    for step in ["open", "reading", "writing", "sharing", "mapped"] {
        let machine = Machine::new();
        let dying = machine.start("kv", move |port| async move {
            let listener = listen("any").unwrap();
            if step == "open" {
                // It dies with an invitation that it has not answered.
                while port.links_in_use() == 0 {
                    sleep(Duration::from_millis(1)).await;
                }
                return;
            }
            let channel = listener.accept().await.unwrap();
            if step == "mapped" {
                channel.map(&SharedMemory::new(2).unwrap(), LinkAccess::Read).await.unwrap();
            }
            sleep(Duration::from_millis(20)).await;
        });
        let surviving = machine.start("web", move |port| async move {
            while open("kv/none").await.is_ok() {
                sleep(Duration::from_millis(1)).await;
            }
            let opened = open("kv/any").await;
            let Ok(channel) = opened else {
                let is_right = matches!(opened, Err(ChannelError::Closed | ChannelError::Refused(_)));
                assert!(step == "open" && is_right, "{step}");
                return;
            };
            match step {
                "reading" => assert_eq!(channel.read().await, Err(ChannelError::Closed)),
                "writing" => while channel.write(&[1; 1000]).await.is_ok() {},
                "sharing" => {
                    let memory = SharedMemory::new(4).unwrap();
                    while channel.map(&memory, LinkAccess::ReadWrite).await.is_ok() {
                        yield_now().await;
                    }
                }
                _ => {
                    let memory = channel.mapped().await.unwrap();
                    channel.closed().await;
                    assert_eq!(memory.len(), 1024);
                    assert!(memory.load(1023).is_some() && !memory.store(0, 1));
                }
            }
            assert!(!channel.is_open(), "{step}");
            assert_eq!(channel.write(b"more").await, Err(ChannelError::Closed), "{step}");
            assert_eq!(channel.try_write_message(&Message::default()), Delivery::Closed);
            assert_eq!(channel.mapped().await.err(), Some(ChannelError::Closed));
            assert_eq!(channel.try_read_message(), Err(ChannelError::Closed));
            drop(channel);
            has_links(port, 0).await;
        });
        dying.join().unwrap();
        surviving.join().unwrap();
    }
}

/// Opens links to a service, and writes random words to its half of each.
async fn attack(port: &'static Port, seed: u64) {
    let mut random = seed | 1;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    let table = port.table();
    for number in 0..60 {
        let half = SharedMemory::new(1 << (number % 4)).unwrap();
        let words = half.words();
        let memory: PhysRange = port.range_of(words);
        let service = service_name(if number % 2 == 0 { "echo" } else { "add" }).unwrap();
        let request = port.send(&LinkDemand::Open { target: "kv".into(), service, memory });
        let Some(Ok(slot)) = table.answer(request) else { panic!("there is room") };
        while table.get(slot).is_some_and(|link| link.state() == LinkState::Waiting) {
            yield_now().await;
        }
        if number % 6 == 1 {
            port.send(&LinkDemand::Share {
                slot,
                memory,
                access: LinkAccess::ReadWrite,
                survival: Survival::Revoked,
            });
        }
        for _ in 0..300 {
            let word = (next() % words.len() as u64) as usize;
            let index = [word, 0, 8, 16, 17, 24, 32 + 8 * (word % 8)][(next() % 7) as usize];
            let value = [next(), next() % 64, ((next() % 8) << 32) | (next() % 300)][(next() % 3) as usize];
            words[index].store(value, Ordering::Relaxed);
            port.ring_doorbell(slot);
        }
        yield_now().await;
        port.send(&LinkDemand::Close { slot });
        // The memory stays written after the end: it is leaked here, as a hostile cell would.
        std::mem::forget(half);
    }
}

#[test]
fn a_hostile_peer_disturbs_no_other() {
    let machine = Machine::new();
    let is_over = Arc::new(AtomicBool::new(false));
    let over = is_over.clone();
    let serving = machine.start("kv", move |port| {
        spawn_task(serve("echo", echo)).detach();
        spawn_task(serve("add", add)).detach();
        let over = over.clone();
        async move {
            while !over.load(Ordering::Acquire) {
                sleep(Duration::from_millis(1)).await;
            }
            has_links(port, 0).await;
        }
    });
    let client = machine.start("web", |_| async {
        let channel = reach("kv/echo").await;
        for round in 0..2000_u32 {
            channel.write(&round.to_le_bytes()).await.unwrap();
            assert_eq!(channel.read().await.unwrap(), round.to_le_bytes());
        }
    });
    let hostile = machine.start("evil", |port| attack(port, 0x9e37_79b9_7f4a_7c15));
    client.join().expect("the client is undisturbed");
    hostile.join().expect("the attack ends");
    is_over.store(true, Ordering::Release);
    serving.join().expect("the service goes on, and frees all slots");
}
