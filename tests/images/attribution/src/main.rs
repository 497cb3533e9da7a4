//! A test image: two activities, `light` and `heavy`, each with an echo service, and clients of both at the other end
//! of a network device in software. It prints the cycles charged to each for several patterns of requests, and ends.
//!
//! ```text
//! PATTERN: light CYCLES, heavy CYCLES, infrastructure CYCLES, own CYCLES and CYCLES
//! ```
//!
//! On a machine whose clocks count instructions, the cycles are instructions and the same in each run. Both services do
//! the same for a request, except that `heavy` does additional work; both measure their own cycles.
#![no_std]
#![no_main]

mod link;

use core::sync::atomic::{AtomicU64, Ordering};
use isola::ebbs::{EbbInUse, current_core, cycles};
use isola::events::activity::INFRASTRUCTURE;
use isola::events::event::Event;
use isola::events::{register_activity, yield_now};
use isola::iobuf::Chain;
use isola::net::{ConnectionHandler, NETWORK_MANAGER, TcpConnection, listen_with};
use isola::prelude::*;
use isola_abi::id::ActivityId;
use isola_ebbs::platform;
use link::{Client, Link};

isola::app!(main, components: components);

/// The rounds of a pattern that are measured.
const ROUNDS: u64 = 500;

/// The rounds before the measured ones.
const WARM_UP: u64 = 20;

const LIGHT_PORT: u16 = 1;
const HEAVY_PORT: u16 = 2;

/// The clients of each service.
const CLIENTS: u16 = 3;

/// The iterations of a loop that `heavy` runs for a request.
const TURNS: u64 = 1_000;

/// The clients that send in each event of a round: `l` and `h` for one of `light` and of `heavy`, a space between
/// events.
const PATTERNS: [(&str, &str); 6] = [
    ("alone", "l h"),
    ("first of four", "lhhh"),
    ("second of four", "hlhh"),
    ("third of four", "hhlh"),
    ("last of four", "hhhl"),
    ("in turns", "lhlhlh"),
];

/// The cycles that the services have measured themselves: `light`, `heavy`.
static OWN_CYCLES: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

fn components() -> Result<(), EbbInUse> {
    NETWORK_MANAGER.replace(|| Box::new(Link))
}

/// An echo service that runs a number of iterations of a loop for each request.
struct Service {
    turns: u64,
    own_cycles: &'static AtomicU64,
}

impl ConnectionHandler for Service {
    fn received(&mut self, connection: &TcpConnection, data: Chain) {
        let began = cycles();
        (0..self.turns).for_each(|turn| _ = core::hint::black_box(turn));
        self.own_cycles.fetch_add(cycles() - began, Ordering::Relaxed);
        echo(connection, data);
    }
}

fn echo(connection: &TcpConnection, mut data: Chain) {
    if let Err(error) = connection.send(&mut data) {
        println!("not sent: {error}");
    }
}

async fn main(_: Arguments) -> ExitCode {
    let (Ok(light), Ok(heavy)) = (register_activity("light"), register_activity("heavy")) else {
        return ExitCode::FAILURE;
    };
    for (activity, port, turns, own_cycles) in
        [(light, LIGHT_PORT, 0, &OWN_CYCLES[0]), (heavy, HEAVY_PORT, TURNS, &OWN_CYCLES[1])]
    {
        let accept = move |_: &TcpConnection| Service { turns, own_cycles };
        // If the port is taken, no client gets an answer.
        Event::new()
            .charged_to(activity)
            .spawn(move || _ = listen_with(port, 8, accept).map(core::mem::forget));
    }
    yield_now().await;
    let mut clients = Vec::new();
    for port in [LIGHT_PORT, HEAVY_PORT] {
        for number in 0..CLIENTS {
            let Some(client) = Client::connect(port, number).await else {
                println!("port {port} does not answer");
                return ExitCode::FAILURE;
            };
            clients.push(client);
        }
    }
    for (name, pattern) in PATTERNS {
        rounds(&mut clients, pattern, WARM_UP).await;
        let before = counted([light, heavy, INFRASTRUCTURE]);
        rounds(&mut clients, pattern, ROUNDS).await;
        let after = counted([light, heavy, INFRASTRUCTURE]);
        let [light, heavy, infrastructure, own_light, own_heavy] =
            core::array::from_fn(|index| after[index] - before[index]);
        println!(
            "{name}: light {light}, heavy {heavy}, infrastructure {infrastructure}, own {own_light} and {own_heavy}"
        );
    }
    println!("activities: all counted");
    ExitCode::SUCCESS
}

/// Plays a pattern `count` times.
async fn rounds(clients: &mut [Client], pattern: &str, count: u64) {
    let (light, heavy) = clients.split_at_mut(CLIENTS.into());
    for _ in 0..count {
        for event in pattern.split(' ') {
            let mut next = [0, 0];
            for kind in event.chars() {
                let (of, at) = if kind == 'l' { (&mut *light, 0) } else { (&mut *heavy, 1) };
                of[next[at]].ask();
                next[at] += 1;
            }
            link::deliver(event.len()).await;
        }
    }
}

/// Returns the cycles that this core has charged to the activities, and those that the services have measured.
fn counted(activities: [ActivityId; 3]) -> [u64; 5] {
    let used = platform().ledger().core(current_core().0 as usize);
    let [a, b, c] = activities.map(|activity| used[activity.0 as usize].cycles.load(Ordering::Relaxed));
    let [light, heavy] = OWN_CYCLES.each_ref().map(|own| own.load(Ordering::Relaxed));
    [a, b, c, light, heavy]
}
