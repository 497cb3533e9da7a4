//! The image of both sides.
//!
//! ```text
//! isola run -d --name pipe -p 5002:5002 netpipe             the server
//! isola run --hosted netpipe connect 10.0.2.2:5002          the client: here a process, through the host
//! isola run --hosted netpipe connect 10.0.2.2:5002 -s to    messages in one direction, back to back
//! ```
#![no_std]
#![no_main]

use core::time::Duration;
use isola::prelude::*;
use isola::{net, resolver};
use isola_netpipe::round::Direction;
use isola_netpipe::{Measurement, Server, Settings, measure_all};

isola::app!(main);

const USAGE: &str = "usage: netpipe [-p PORT]
       netpipe connect HOST:PORT [-l MIN_BYTES] [-u MAX_BYTES] [-s to|from] [-t MILLISECONDS] [-o json]";

const DEFAULT_PORT: u16 = 5002;

/// The number of connections per core that can wait for acceptance.
const BACKLOG: usize = 16;

async fn main(arguments: Arguments) -> ExitCode {
    let words: Vec<&str> = arguments.iter().collect();
    let outcome = match words.as_slice() {
        [] => serve(DEFAULT_PORT).await,
        ["-p", port] => match port.parse() {
            Ok(port) => serve(port).await,
            Err(_) => return usage(),
        },
        ["connect", there, options @ ..] => match (host_and_port(there), Output::parse(options)) {
            (Some(there), Some(output)) => measure(there, output).await,
            _ => return usage(),
        },
        _ => return usage(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("netpipe: {error}");
            ExitCode::FAILURE
        }
    }
}

fn usage() -> ExitCode {
    println!("{USAGE}");
    ExitCode::USAGE
}

/// The settings of the measurement, and the format of its results.
struct Output {
    settings: Settings,
    line: fn(&Measurement) -> String,
}

impl Output {
    fn parse(options: &[&str]) -> Option<Self> {
        let mut output = Self { settings: Settings::default(), line: Measurement::to_string };
        for pair in options.chunks(2) {
            match pair {
                ["-u", most] => output.settings.most = most.parse().ok().filter(|most| *most > 0)?,
                ["-l", least] => output.settings.least = least.parse().ok()?,
                ["-t", round] => output.settings.round = Duration::from_millis(round.parse().ok()?),
                ["-s", "to"] => output.settings.direction = Direction::ToServer,
                ["-s", "from"] => output.settings.direction = Direction::ToClient,
                ["-o", "json"] => output.line = |measurement| measurement.json().to_string(),
                _ => return None,
            }
        }
        Some(output)
    }
}

async fn serve(port: u16) -> Result<(), String> {
    let listening = net::listen_with(port, BACKLOG, |_| Server::default());
    let _listening = listening.map_err(|error| error.to_string())?;
    println!("netpipe: TCP port {port}, {} cores", isola::core_count());
    isola::stop_requested().await;
    Ok(())
}

/// Parses the server's name or address, and its port.
fn host_and_port(text: &str) -> Option<(&str, u16)> {
    let (host, port) = text.rsplit_once(':')?;
    // An IPv6 address is in brackets.
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    Some((host, port.parse().ok()?))
}

async fn measure((host, port): (&str, u16), output: Output) -> Result<(), String> {
    net::wait_for_address().await;
    let stream = resolver::connect(host, port).await.map_err(|error| format!("{host}: {error}"))?;
    let measurement =
        measure_all(stream, output.settings, |measurement| println!("{}", (output.line)(&measurement)));
    measurement.await.map_err(|error| format!("{host}: {error}"))
}
