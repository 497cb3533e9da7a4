//! A device with more queues than the cell initially has cores.

use isola_ebbs::current_core;
use isola_events::{exit, run, sleep, spawn, spawn_on, spawn_task};
use isola_hosted::{Hosted, Settings};
use isola_iobuf::{Chain, IoBufMut};
use isola_net::port::{
    FlowSpreading, Frame, FramesPending, NetworkPort, NetworkQueue, Offloads, ReceivedFrame,
    SPREADING_KEY_LEN, SPREADING_PARTS, SpreadingRefused,
};
use isola_net::{
    Addressing, Ipv4Config, NETWORK_MANAGER, NetworkManager, NetworkSettings, UdpSocket, rebalance, start,
};
use isola_platform::CoreIndex;
use isola_platform::VacatedMemory;
use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{panic, process, thread};

const QUEUES: usize = 4;

const CORES: usize = 3;

/// The awaited states take milliseconds.
const PATIENCE: Duration = Duration::from_secs(60);

/// The core to which each queue is attached.
static ATTACHED: Mutex<[Option<CoreIndex>; QUEUES]> = Mutex::new([None; QUEUES]);

/// The number of flow groups that the device assigns to each queue.
static PARTS: Mutex<[usize; QUEUES]> = Mutex::new([0; QUEUES]);

/// The number of queues that may send.
static IN_USE: AtomicUsize = AtomicUsize::new(1);

/// The number of frames that each queue has sent.
static SENT: [AtomicUsize; QUEUES] = [const { AtomicUsize::new(0) }; QUEUES];

/// The cores that have joined_cores, present or not.
static HAS_JOINED: [AtomicBool; CORES] = [const { AtomicBool::new(false) }; CORES];

/// Whether the network was started and the first rebalancing is complete.
static HAS_BEGUN: AtomicBool = AtomicBool::new(false);

static ENDS: AtomicBool = AtomicBool::new(false);

struct Queue(usize);

impl NetworkQueue for Queue {
    fn vector(&self) -> Option<u8> {
        Some(0x40 + self.0 as u8)
    }

    fn offloads(&self) -> Offloads {
        Offloads::default()
    }

    fn attach(&mut self) {
        let before = ATTACHED.lock().unwrap()[self.0].replace(current_core());
        assert_eq!(before, None);
    }

    fn receive(&mut self) -> Option<ReceivedFrame> {
        // A core that receives from a queue may send through it.
        assert!(self.0 < IN_USE.load(Ordering::Relaxed), "queue {} is not in use", self.0);
        None
    }

    fn send(&mut self, _: Frame) -> Result<(), Frame> {
        assert!(self.0 < IN_USE.load(Ordering::Relaxed), "queue {} is not in use", self.0);
        SENT[self.0].fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn flush(&mut self) {}

    fn reclaim(&mut self, _: &mut dyn FnMut(IoBufMut)) {}

    fn enable_interrupts(&mut self) -> FramesPending {
        FramesPending::No
    }

    fn disable_interrupts(&mut self) {}

    fn redirect(&mut self) {}

    fn vacate(&mut self, _: &VacatedMemory) {}

    fn has_failed(&self) -> bool {
        false
    }
}

struct Spreading;

impl FlowSpreading for Spreading {
    fn spread(
        &mut self,
        _: &[u8; SPREADING_KEY_LEN],
        queues: &[u16; SPREADING_PARTS],
        in_use: u16,
    ) -> Result<(), SpreadingRefused> {
        let attached = ATTACHED.lock().unwrap().iter().flatten().count();
        assert!(attached.max(1) >= in_use.into(), "a queue without an owner is in use");
        let before = IN_USE.swap(in_use.into(), Ordering::Relaxed);
        assert!(before <= in_use.into(), "a queue of a sending core is no longer in use");
        let of = |queue| queues.iter().filter(|other| usize::from(**other) == queue).count();
        let parts = std::array::from_fn(of);
        for (queue, parts) in parts.iter().enumerate() {
            assert!(*parts == 0 || ATTACHED.lock().unwrap()[queue].is_some(), "queue {queue} has no owner");
        }
        *PARTS.lock().unwrap() = parts;
        Ok(())
    }
}

struct Manager;

impl NetworkManager for Manager {
    fn open(&self) -> Option<NetworkPort> {
        let queues = (0..QUEUES).map(|number| Box::new(Queue(number)) as Box<dyn NetworkQueue + Send>);
        let spreading = Some(Box::new(Spreading) as Box<dyn FlowSpreading + Send>);
        Some(NetworkPort { mac: [2; 6], mtu: 1500, headroom: 0, queues: queues.collect(), spreading })
    }

    fn settings(&self) -> NetworkSettings {
        let address = Ipv4Config::new(Ipv4Addr::new(10, 9, 0, 1), 24, None);
        NetworkSettings { addressing: Addressing::Static(address), ..NetworkSettings::default() }
    }
}

#[track_caller]
fn wait_until(holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "timed out: {:?}", PARTS.lock().unwrap());
        thread::sleep(Duration::from_micros(100));
    }
}

fn manage(platform: &'static Hosted) {
    let attached = || *ATTACHED.lock().unwrap();
    // Waits until the used queues have equal shares.
    let parts_are = |used: [bool; QUEUES]| {
        let fair = 128 / used.iter().filter(|used| **used).count();
        let is_so =
            |(parts, used): (usize, bool)| parts >= if used { fair } else { 0 } && (used || parts == 0);
        // Without the lock, which the message needs.
        wait_until(|| {
            let parts = *PARTS.lock().unwrap();
            parts.into_iter().zip(used).all(is_so)
        });
    };
    // Waits until the queue's core sends through it.
    let is_sent_by = |queue: usize| {
        let sent = || SENT[queue].load(Ordering::Relaxed);
        let before = sent();
        wait_until(|| sent() > before);
    };
    let give = |core: u32| {
        platform.plug_core(CoreIndex(core));
        HAS_JOINED[core as usize].store(true, Ordering::Relaxed);
    };
    wait_until(|| attached()[0] == Some(CoreIndex(0)) && HAS_BEGUN.load(Ordering::Relaxed));
    assert_eq!(attached()[1..], [None; 3]);
    // Not in numerical order.
    give(2);
    parts_are([true, true, false, false]);
    is_sent_by(1);
    assert_eq!(attached(), [Some(CoreIndex(0)), Some(CoreIndex(2)), None, None]);
    give(1);
    parts_are([true, true, true, false]);
    platform.unplug_core(CoreIndex(2));
    parts_are([true, false, true, false]);
    is_sent_by(1);
    // It still owns its queue.
    platform.plug_core(CoreIndex(2));
    parts_are([true, true, true, false]);
    assert_eq!(attached(), [Some(CoreIndex(0)), Some(CoreIndex(2)), Some(CoreIndex(1)), None]);
    ENDS.store(true, Ordering::Relaxed);
}

/// Sends a datagram on this core; an address resolution precedes it.
fn send() {
    static SENT: AtomicUsize = AtomicUsize::new(0);
    let neighbour = Ipv4Addr::new(10, 9, 0, 2 + (SENT.fetch_add(1, Ordering::Relaxed) % 200) as u8);
    let socket = UdpSocket::bind(1000 + current_core().0 as u16).unwrap();
    // It is irrelevant whether there is room for it.
    let _ = socket.send_to((neighbour, 9).into(), Chain::new());
}

fn begin() {
    start().unwrap();
    spawn_task(async {
        // The cell has no core 99.
        let rebalanced = rebalance(&[CoreIndex(0), CoreIndex(99)]).await;
        assert_eq!(rebalanced.map(|done| done.buckets), Ok(0));
        HAS_BEGUN.store(true, Ordering::Relaxed);
        while !ENDS.load(Ordering::Relaxed) {
            for (core, _) in
                (0..).zip(&HAS_JOINED).filter(|(_, has_joined)| has_joined.load(Ordering::Relaxed))
            {
                spawn_on(CoreIndex(core), send);
            }
            sleep(Duration::from_millis(1)).await;
        }
        exit(0);
    })
    .detach();
}

#[test]
fn each_core_that_joins_gets_a_queue_while_there_are_any() {
    // A cell without one of its cores would not end.
    panic::set_hook(Box::new(|defect| {
        let _ = writeln!(io::stderr(), "{defect}");
        process::exit(101);
    }));
    let settings = Settings { cores: 1, core_slot_count: CORES, ..Settings::default() };
    thread::scope(|scope| {
        let scope = &scope;
        isola_hosted::run(settings, Vec::new(), |platform| {
            if current_core() == CoreIndex(0) {
                NETWORK_MANAGER.replace(|| Box::new(Manager)).unwrap();
                spawn(begin);
                scope.spawn(move || manage(platform));
            }
            run()
        });
    });
}
