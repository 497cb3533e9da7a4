//! Counters and connections, as each core knows them.

use super::{INQUIRIES, answers};
use crate::core_network::NETWORK;
use crate::drops::dropped;
use crate::interface;
use alloc::string::ToString;
use alloc::vec::Vec;
use isola_abi::inquiry::{CounterName, Fact, Inquiry, Line};
use isola_ebbs::current_core;
use isola_events::spawn_on;
use isola_net_stack::{Counter, Stack};
use isola_platform::CoreIndex;

/// Bytes of the ring that are left for each core to say that it is done.
const ROOM_TO_END: u64 = 64 * 32;

/// Begins the answer, and has each core that has a stack go on with it.
pub(super) fn answer(number: u32, inquiry: Inquiry) {
    let cores: Vec<CoreIndex> = interface::joined().collect();
    let ring = answers().on(Line::Facts);
    let mut answered = INQUIRIES.facts.lock();
    *answered = number;
    ring.begin(number);
    let put = |fact: Fact| _ = ring.push([&fact.encode()[..]].into_iter());
    put(Fact::Begin { cores: cores.len() as u32 });
    if inquiry == Inquiry::Counters {
        put(Fact::Names(Counter::ALL.iter().map(|counter| name(*counter)).collect()));
    }
    drop(answered);
    for core in cores {
        let inquiry = inquiry.clone();
        spawn_on(core, move || tell(number, &inquiry));
    }
}

fn name(counter: Counter) -> CounterName {
    CounterName { layer: counter.layer().to_string(), name: counter.name().to_string() }
}

/// Says what this core knows. Where there is more than has room, what is left out is counted.
fn tell(number: u32, inquiry: &Inquiry) {
    let (facts, connections) = NETWORK.look(|stack| collect(stack, inquiry)).unwrap_or_default();
    let answered = INQUIRIES.facts.lock();
    if *answered != number {
        return;
    }
    let ring = answers().on(Line::Facts);
    for fact in facts {
        let bytes = fact.encode();
        if ring.room() >= ROOM_TO_END + bytes.len() as u64 {
            let _ = ring.push([&bytes[..]].into_iter());
        }
    }
    let done = Fact::Done { core: current_core().0, connections };
    let _ = ring.push([&done.encode()[..]].into_iter());
}

/// What a stack tells, and how many connections were meant.
fn collect(stack: &Stack, inquiry: &Inquiry) -> (Vec<Fact>, u32) {
    match inquiry {
        Inquiry::Counters => {
            let counted = stack.counters().iter().map(|(counter, count)| count + dropped(counter));
            (Vec::from([Fact::Counters(counted.collect())]), 0)
        }
        Inquiry::Connections { .. } | Inquiry::Capture(_) | Inquiry::EndCapture => (Vec::new(), 0),
    }
}
