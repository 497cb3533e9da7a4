//! A device with more queues than the cell begins with cores.

use isola_ebbs::current_core;
use isola_events::{exit, run, sleep, spawn, spawn_task};
use isola_hosted::{Hosted, Settings};
use isola_iobuf::IoBufMut;
use isola_net::port::{
    FlowSpreading, Frame, FramesPending, NetworkPort, NetworkQueue, Offloads, ReceivedFrame,
    SPREADING_KEY_LEN, SPREADING_PARTS, SpreadingRefused,
};
use isola_net::{Addressing, Ipv4Config, NETWORK_MANAGER, NetworkManager, NetworkSettings, start};
use isola_platform::CoreIndex;
use std::net::Ipv4Addr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

const QUEUES: usize = 4;

/// Which core each queue is attached to.
static ATTACHED: Mutex<[Option<CoreIndex>; QUEUES]> = Mutex::new([None; QUEUES]);

/// How many parts of the flows the device hands to each queue.
static PARTS: Mutex<[usize; QUEUES]> = Mutex::new([0; QUEUES]);

static ENDS: AtomicBool = AtomicBool::new(false);

struct Queue(usize);

impl NetworkQueue for Queue {
    fn vector(&self) -> u8 {
        0x40 + self.0 as u8
    }

    fn offloads(&self) -> Offloads {
        Offloads::default()
    }

    fn attach(&mut self) {
        let before = ATTACHED.lock().unwrap()[self.0].replace(current_core());
        assert_eq!(before, None);
    }

    fn receive(&mut self) -> Option<ReceivedFrame> {
        None
    }

    fn send(&mut self, _: Frame) -> Result<(), Frame> {
        Ok(())
    }

    fn flush(&mut self) {}

    fn reclaim(&mut self, _: &mut dyn FnMut(IoBufMut)) {}

    fn enable_interrupts(&mut self) -> FramesPending {
        FramesPending::No
    }

    fn disable_interrupts(&mut self) {}
}

struct Spreading;

impl FlowSpreading for Spreading {
    fn spread(
        &mut self,
        _: &[u8; SPREADING_KEY_LEN],
        queues: &[u16; SPREADING_PARTS],
    ) -> Result<(), SpreadingRefused> {
        let of = |queue| queues.iter().filter(|other| usize::from(**other) == queue).count();
        let parts = std::array::from_fn(of);
        for (queue, parts) in parts.iter().enumerate() {
            assert!(*parts == 0 || ATTACHED.lock().unwrap()[queue].is_some(), "queue {queue} is nobody's");
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

fn wait_until(holds: impl Fn() -> bool) {
    while !holds() {
        thread::sleep(Duration::from_micros(100));
    }
}

fn manage(platform: &'static Hosted) {
    let attached = || *ATTACHED.lock().unwrap();
    // Which queues have any, in fair parts.
    let parts_are = |used: [bool; QUEUES]| {
        let fair = 128 / used.iter().filter(|used| **used).count();
        let is_so =
            |(parts, used): (usize, bool)| parts >= if used { fair } else { 0 } && (used || parts == 0);
        wait_until(|| PARTS.lock().unwrap().into_iter().zip(used).all(is_so));
    };
    wait_until(|| attached()[0] == Some(CoreIndex(0)));
    assert_eq!(attached()[1..], [None; 3]);
    // Not in the order of their numbers.
    platform.give_core(CoreIndex(2));
    parts_are([true, true, false, false]);
    assert_eq!(attached(), [Some(CoreIndex(0)), Some(CoreIndex(2)), None, None]);
    platform.give_core(CoreIndex(1));
    parts_are([true, true, true, false]);
    platform.take_core(CoreIndex(2));
    parts_are([true, false, true, false]);
    // It has had its queue since.
    platform.give_core(CoreIndex(2));
    parts_are([true, true, true, false]);
    assert_eq!(attached(), [Some(CoreIndex(0)), Some(CoreIndex(2)), Some(CoreIndex(1)), None]);
    ENDS.store(true, Ordering::Relaxed);
}

fn begin() {
    start().unwrap();
    spawn_task(async {
        while !ENDS.load(Ordering::Relaxed) {
            sleep(Duration::from_millis(1)).await;
        }
        exit(0);
    })
    .detach();
}

#[test]
fn each_core_that_comes_has_a_queue_of_its_own_as_long_as_there_are_any() {
    let settings = Settings { cores: 1, core_places: 3, ..Settings::default() };
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
