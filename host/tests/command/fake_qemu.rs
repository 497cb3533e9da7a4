//! What the script in a sandbox runs in QEMU's place: its sockets, its control channel, and a supervisor.
//!
//! How it behaves is said by `FAKE_BEHAVIOUR`:
//!
//! | word | what it does |
//! |---|---|
//! | `normal` | what QEMU does |
//! | `refuses` | it does not start (the script sees to that) |
//! | `silent` | its supervisor never answers |
//! | `dies` | it ends as soon as it is asked something |
//! | `version` | its supervisor speaks another version |
//! | `halts` | it forwards the first port, and never says so |
//! | `exits` | an image that runs alone prints something, and ends with code 7 |

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

/// Ends itself after this time, should a test have forgotten it.
const LIFETIME: Duration = Duration::from_secs(300);

#[test]
#[ignore = "runs in QEMU's place, started by other tests"]
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
    // As long as this program runs, so does the machine's switch.
    let sockets = arguments.iter().filter_map(|argument| argument.split_once("addr.path="));
    let _links: Vec<_> = sockets.map(|(_, path)| UnixStream::connect(path).unwrap()).collect();
    let supervised = arguments.contains(&"virtserialport,chardev=mgmt");
    let management = supervised.then(|| UnixListener::bind("management.sock").unwrap());
    fs::write("serial.log", "isola: the fake supervisor's log\n").unwrap();
    fs::write(value("-pidfile").unwrap(), format!("{}\n", process::id())).unwrap();
    match (management, behaviour.as_str()) {
        (Some(listener), "silent") => {
            // Kept open, and never answered. No `collect`: the iterator promises more than a vector can hold.
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

/// A port that is really taken, as long as it is forwarded.
enum Forward {
    Tcp { _socket: TcpListener },
    Udp { _socket: UdpSocket },
}

fn serve_qmp(listener: &UnixListener, mut halts: bool) {
    let mut forwards = HashMap::new();
    for stream in listener.incoming() {
        // A client that goes away is no reason to end.
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
        // What QEMU tells unasked stands between the questions and the answers.
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
