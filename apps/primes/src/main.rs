//! The service: a number by UDP, all cores count, the count goes back.
//!
//! `primes [PORT]`, by default 7000. The first core answers; the others are woken by the first number and halted
//! again after each.
#![no_std]
#![no_main]

use isola::events::{parallel, yield_now};
use isola::iobuf::IoBuf;
use isola::net::UdpSocket;
use isola::prelude::*;
use isola_primes::count::{Counter, pieces};
use isola_primes::request;

isola::app!(main);

const DEFAULT_PORT: u16 = 7000;

async fn main(arguments: Arguments) -> ExitCode {
    let port = match arguments.get(0).map(str::parse) {
        None => DEFAULT_PORT,
        Some(Ok(port)) => port,
        Some(Err(_)) => {
            println!("usage: primes [PORT]");
            return ExitCode::USAGE;
        }
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
        let answer = match request::parse(&datagram.payload) {
            Ok(number) => format!("{number} {}\n", count(number).await),
            Err(error) => format!("{error}\n"),
        };
        // An answer that cannot be sent is lost, as it could be on its way: the client asks again.
        let _ = socket.answer(&datagram, IoBuf::from(answer.into_bytes()).into());
    }
}

/// The number of primes below `number`, by all cores of the cell.
async fn count(number: u64) -> u64 {
    let parts = isola::core_count();
    let counts = parallel(parts, move |part| async move {
        let mut counter = Counter::new(number);
        let mut count = 0;
        for piece in pieces(number, part, parts) {
            count += counter.count(piece);
            yield_now().await;
        }
        count
    });
    counts.await.into_iter().sum()
}
