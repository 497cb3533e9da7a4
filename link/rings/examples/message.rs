//! Sends doorbells between two polling sides of a ring, for counts of instructions:
//! the difference of two runs is the cost of their rounds.
//!
//! ```text
//! cargo build --release -p isola-link-rings --example message
//! for rounds in 1000 101000; do valgrind --tool=callgrind target/release/examples/message $rounds; done
//! ```

use isola_link_rings::{HEADER_LINES, Half, LINE_WORDS, Message, Ring};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

fn main() {
    let rounds: u64 = std::env::args().nth(1).and_then(|word| word.parse().ok()).unwrap_or(1000);
    let memory =
        || -> Arc<[AtomicU64]> { (0..(HEADER_LINES + 60) * LINE_WORDS).map(|_| AtomicU64::new(0)).collect() };
    let memories = [memory(), memory()];
    let half = |index: usize| {
        let half = Half::new(memories[index].clone()).expect("a page is enough");
        half.init();
        half
    };
    let (mut a, mut b) = (Ring::new(half(0), half(1)), Ring::new(half(1), half(0)));
    let mut sum = 0;
    for round in 0..rounds {
        let _ = a.send_message(&Message::new([round; 7]));
        sum += b.receive_message().ok().flatten().map_or(0, |message| message.words()[0]);
        let _ = b.release();
    }
    println!("{rounds} messages, sum {sum}");
}
