//! The service: a number arrives by UDP, all cores count, and the count goes back.
//!
//! `primes [PORT]`, by default 7000. The first core answers; each request wakes the other cores, which halt again after
//! it. A number above 100000000 is rejected: requests are served one after another, so each must be short.
//!
//! `primes batch NUMBER` is a batch job: it counts the primes below the number on the cores that the cell has,
//! including those plugged meanwhile, prints the duration, and ends. It needs no network.
#![no_std]
#![no_main]

use alloc::sync::Arc;
use core::time::Duration;
use isola::events::{now, parallel, yield_if_needed};
use isola::iobuf::IoBuf;
use isola::net::UdpSocket;
use isola::prelude::*;
use isola_primes::count::{Counter, pieces};
use isola_primes::job::Job;
use isola_primes::request;

extern crate alloc;

isola::app!(main);

const DEFAULT_PORT: u16 = 7000;

/// The interval at which a batch job adapts to the cell's cores.
const ROUND: Duration = Duration::from_millis(100);

async fn main(arguments: Arguments) -> ExitCode {
    if arguments.get(0) == Some("batch") {
        return match arguments.get(1).map(|number| request::parse(number.as_bytes(), request::MAX_BATCH)) {
            Some(Ok(number)) => batch(number).await,
            Some(Err(error)) => {
                println!("primes: {error}");
                ExitCode::USAGE
            }
            None => usage(),
        };
    }
    let port = match arguments.get(0).map(str::parse) {
        None => DEFAULT_PORT,
        Some(Ok(port)) => port,
        Some(Err(_)) => return usage(),
    };
    let socket = match UdpSocket::bind(port) {
        Ok(socket) => socket,
        Err(error) => {
            println!("primes: {error}");
            return ExitCode::FAILURE;
        }
    };
    println!("primes: UDP port {port}, {} cores", isola::core_count());
    loop {
        let datagram = socket.receive().await;
        let answer = match request::parse(&datagram.payload, request::MAX_NUMBER) {
            Ok(number) => format!("{number} {}\n", count(number).await),
            Err(error) => format!("{error}\n"),
        };
        // A failed send is like a lost datagram: the client repeats its request.
        let _ = socket.answer(&datagram, IoBuf::from(answer.into_bytes()).into());
    }
}

fn usage() -> ExitCode {
    println!("usage: primes [PORT], or: primes batch NUMBER");
    ExitCode::USAGE
}

/// Counts the primes below `number`, in rounds: each starts a worker per core that the cell has at that time. If a core
/// leaves meanwhile, its worker continues on another core.
async fn batch(number: u64) -> ExitCode {
    println!("primes: batch of {number}, {} cores", isola::core_count());
    let (begin, job) = (now(), Arc::new(Job::new(number)));
    let counter = Arc::new(job.counter());
    while !job.is_dealt() {
        let (job, counter, end) = (job.clone(), counter.clone(), now() + ROUND);
        let workers = parallel(isola::core_count(), move |_| {
            let (job, mut counter) = (job.clone(), Counter::clone(&counter));
            async move {
                while now() < end && job.step_with(&mut counter, yield_if_needed).await {
                    yield_if_needed().await;
                }
            }
        });
        workers.await;
    }
    println!("primes: {} below {number} in {} us", job.found(), (now() - begin).as_micros());
    ExitCode::SUCCESS
}

/// Returns the number of primes below `number`, counted by all cores of the cell.
async fn count(number: u64) -> u64 {
    let parts = isola::core_count();
    let counts = parallel(parts, move |part| async move {
        let mut counter = Counter::new(number);
        let mut count = 0;
        for piece in pieces(number, part, parts) {
            count += counter.count_in_steps(piece, yield_if_needed).await;
            yield_if_needed().await;
        }
        count
    });
    counts.await.into_iter().sum()
}
