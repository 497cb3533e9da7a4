//! The program that the script in a sandbox runs instead of QEMU: QEMU's sockets, its control channel, and a
//! supervisor.
//!
//! `FAKE_BEHAVIOUR` selects its behaviour:
//!
//! | word | behaviour |
//! |---|---|
//! | `normal` | like QEMU |
//! | `refuses` | it does not start (the script itself fails) |
//! | `silent` | its supervisor never answers |
//! | `dies` | it ends as soon as a client connects to its supervisor |
//! | `version` | its supervisor speaks another version |
//! | `halts` | it forwards the first port, and never answers |
//! | `exits` | a standalone image prints a line, and ends with code 7 |

use crate::fake_supervisor::Supervisor;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::env;
use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, UdpSocket};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process;
use std::thread::{self, sleep};
use std::time::Duration;

/// The time after which it ends by itself, in case a test did not end it.
const LIFETIME: Duration = Duration::from_secs(300);

#[test]
#[ignore = "other tests start it instead of QEMU"]
fn serve() {
    let Ok(arguments) = env::var("FAKE_ARGUMENTS") else { return };
    let arguments: Vec<&str> = arguments.lines().collect();
    let value = |option: &str| {
        let at = arguments.iter().position(|argument| *argument == option)?;
        arguments.get(at + 1).copied()
    };
    let behaviour = env::var("FAKE_BEHAVIOUR").unwrap_or_default();
    thread::spawn(|| {
        sleep(LIFETIME);
        process::exit(1);
    });
    let qmp = UnixListener::bind("qmp.sock").unwrap();
    let halts = behaviour == "halts";
    thread::spawn(move || serve_qmp(&qmp, halts));
    // Open as long as this program runs, so that the machine's switch keeps running.
    let sockets = arguments.iter().filter_map(|argument| argument.split_once("addr.path="));
    let _links: Vec<_> = sockets.map(|(_, path)| UnixStream::connect(path).unwrap()).collect();
    let supervised = arguments.contains(&"virtserialport,chardev=mgmt");
    let management = supervised.then(|| UnixListener::bind("management.sock").unwrap());
    fs::write("serial.log", "isola: the fake supervisor's log\n").unwrap();
    fs::write(value("-pidfile").unwrap(), format!("{}\n", process::id())).unwrap();
    match (management, behaviour.as_str()) {
        (Some(listener), "silent") => {
            // Keeps the connections open without an answer. No `collect`: the iterator's size hint exceeds a vector's
            // capacity.
            let mut connections = Vec::new();
            listener.incoming().for_each(|connection| connections.push(connection));
        }
        (Some(listener), "dies") => {
            let _connection = listener.accept();
            eprintln!("fake: fatal: triple fault");
            process::exit(1);
        }
        (Some(listener), behaviour) => {
            let version = if behaviour == "version" { isola_abi::VERSION + 1 } else { isola_abi::VERSION };
            Supervisor::new(version).serve(&listener);
        }
        (None, "exits") => {
            sleep(Duration::from_millis(300));
            let text = format!("alone: {}\n", value("-append").unwrap_or("-"));
            OpenOptions::new().append(true).open("serial.log").unwrap().write_all(text.as_bytes()).unwrap();
            process::exit(2 * 7 + 1);
        }
        (None, _) => sleep(LIFETIME),
    }
}

/// A port that is bound as long as it is forwarded.
enum Forward {
    Tcp { _socket: TcpListener },
    Udp { _socket: UdpSocket },
}

fn serve_qmp(listener: &UnixListener, mut halts: bool) {
    let mut forwards = HashMap::new();
    for stream in listener.incoming() {
        // A client that disconnects must not end the server.
        let _ = serve_client(stream.unwrap(), &mut forwards, &mut halts);
    }
}

fn serve_client(
    mut stream: UnixStream,
    forwards: &mut HashMap<String, Forward>,
    halts: &mut bool,
) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut say = |value: Value| writeln!(stream, "{value}");
    say(json!({"QMP": {"version": {}, "capabilities": []}}))?;
    let mut line = String::new();
    while reader.read_line(&mut line)? > 0 {
        let request: Value = serde_json::from_str(&line).unwrap();
        // QEMU's asynchronous events come between requests and answers.
        say(json!({"event": "RTC_CHANGE", "data": {"offset": 0}}))?;
        match request["execute"].as_str().unwrap() {
            "qmp_capabilities" => say(json!({"return": {}}))?,
            "quit" => {
                say(json!({"return": {}}))?;
                process::exit(0);
            }
            "human-monitor-command" => {
                let command = request["arguments"]["command-line"].as_str().unwrap();
                let answer = monitor(command, forwards);
                if !(command.starts_with("hostfwd_add") && std::mem::take(halts)) {
                    say(json!({"return": answer}))?;
                }
            }
            other => say(json!({"error": {"class": "CommandNotFound", "desc": format!("no {other}")}}))?,
        }
        line.clear();
    }
    Ok(())
}

fn monitor(command: &str, forwards: &mut HashMap<String, Forward>) -> String {
    let words: Vec<&str> = command.split_whitespace().collect();
    match words[..] {
        ["hostfwd_add", "u0", rule] => {
            let (host, _) = rule.split_once('-').unwrap();
            let (protocol, address) = host.split_once(':').unwrap();
            let bound = match protocol {
                "tcp" => TcpListener::bind(address).map(|socket| Forward::Tcp { _socket: socket }),
                _ => UdpSocket::bind(address).map(|socket| Forward::Udp { _socket: socket }),
            };
            match bound {
                Ok(forward) => {
                    forwards.insert(host.to_owned(), forward);
                    String::new()
                }
                Err(_) => format!("could not set up host forwarding rule '{rule}'\r\n"),
            }
        }
        ["hostfwd_remove", "u0", host] => match forwards.remove(host) {
            Some(Forward::Tcp { .. } | Forward::Udp { .. }) => {
                format!("host forwarding rule for {host} removed\r\n")
            }
            None => format!("host forwarding rule for {host} not found\r\n"),
        },
        _ => format!("unknown command: '{command}'\r\n"),
    }
}
