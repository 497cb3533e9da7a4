//! A test image: a cell that violates the rules of the network between cells.
//!
//! `intruder take IP PORT` assigns itself an address, listens at the port, and answers `stolen` to all clients.
//! `intruder call IP PORT` connects, and prints whether that succeeded.
#![no_std]
#![no_main]

use core::net::Ipv4Addr;
use core::time::Duration;
use isola::events::timeout;
use isola::iobuf::{Chain, IoBuf};
use isola::net::{self, Ipv4Config, TcpStream};
use isola::prelude::*;

isola::app!(main);

/// The time limit of a call, in which TCP sends the first segment three times.
const TIMEOUT: Duration = Duration::from_secs(4);

async fn main(arguments: Arguments) -> ExitCode {
    let (Some(ip), Some(port)) = (argument(&arguments, 1), argument(&arguments, 2)) else {
        println!("usage: intruder take|call IP PORT");
        return ExitCode::USAGE;
    };
    println!("own address: {}", net::wait_for_address().await.address);
    match arguments.get(0) {
        Some("take") => take(ip, port).await,
        _ => call(ip, port).await,
    }
}

fn argument<T: core::str::FromStr>(arguments: &Arguments, index: usize) -> Option<T> {
    arguments.get(index)?.parse().ok()
}

async fn take(ip: Ipv4Addr, port: u16) -> ExitCode {
    if let Err(refused) = net::set_address(Some(Ipv4Config::new(ip, 24, None))) {
        println!("refused: {refused}");
        return ExitCode::FAILURE;
    }
    while net::address().is_none_or(|own| own.address != ip) {
        isola::events::sleep(Duration::from_millis(1)).await;
    }
    let _listening = net::listen(port, 16, answer);
    println!("took: {ip}");
    isola::stop_requested().await;
    ExitCode::SUCCESS
}

async fn answer(mut stream: TcpStream) {
    println!("a client connected");
    let _ = stream.write(Chain::from(IoBuf::from(b"stolen\r\n".to_vec()))).await;
    stream.shutdown();
}

async fn call(ip: Ipv4Addr, port: u16) -> ExitCode {
    match timeout(TIMEOUT, net::connect((ip, port).into())).await {
        Ok(Ok(_)) => println!("called: {ip}"),
        Ok(Err(error)) => println!("not called: {error}"),
        Err(_) => println!("not called: no answer"),
    }
    ExitCode::SUCCESS
}
