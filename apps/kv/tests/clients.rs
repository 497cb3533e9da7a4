//! Independent clients over real sockets: a client library in both protocols, and libmemcached's server test where it
//! is installed.

mod common;

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::process::Command;
use std::thread;

use common::tcp::serve;
use isola_need::{Need, need};
use memcache::{Client, MemcacheError};

fn client(address: SocketAddr, protocol: &str) -> Client {
    Client::connect(format!("memcache://{address}?timeout=20&protocol={protocol}")).unwrap()
}

/// Returns whether the client library reports that the condition of a store does not hold. In the text protocol it
/// reports only errors, and this is not an error.
fn is_not_stored(protocol: &str, result: Result<(), MemcacheError>) -> bool {
    match protocol {
        "ascii" => result.is_ok(),
        _ => matches!(result, Err(MemcacheError::CommandError(_))),
    }
}

fn use_everything(protocol: &str) {
    let address = serve(3, 64 << 20);
    let client = client(address, protocol);
    client.flush().unwrap();
    assert!(client.version().unwrap()[0].1.contains("1.6."));

    client.set("text", "value", 0).unwrap();
    assert_eq!(client.get::<String>("text").unwrap().as_deref(), Some("value"));
    assert_eq!(client.get::<String>("missing").unwrap(), None);
    assert!(is_not_stored(protocol, client.add("text", "x", 0)));
    assert_eq!(client.get::<String>("text").unwrap().as_deref(), Some("value"));
    client.add("added", "x", 0).unwrap();
    client.replace("added", "y", 0).unwrap();
    assert!(is_not_stored(protocol, client.replace("missing", "y", 0)));
    client.append("added", "z").unwrap();
    client.prepend("added", "x").unwrap();
    assert_eq!(client.get::<String>("added").unwrap().as_deref(), Some("xyz"));

    client.set("number", 10, 0).unwrap();
    assert_eq!(client.increment("number", 5).unwrap(), 15);
    assert_eq!(client.decrement("number", 20).unwrap(), 0);
    assert!(client.touch("number", 100).unwrap() && !client.touch("missing", 100).unwrap());
    assert!(client.delete("number").unwrap() && !client.delete("number").unwrap());

    let items: HashMap<String, (Vec<u8>, u32, Option<u64>)> =
        client.gets(&["text", "missing", "added"]).unwrap();
    assert_eq!(items.len(), 2);
    let version = items["text"].2.unwrap();
    assert!(client.cas("text", "newer", 0, version).unwrap());
    assert!(!client.cas("text", "newest", 0, version).unwrap());

    let large: Vec<u8> = (0..1_000_000u32).map(|number| (number / 7) as u8).collect();
    client.set("large", &large[..], 0).unwrap();
    assert_eq!(client.get::<Vec<u8>>("large").unwrap(), Some(large));

    let keys: Vec<String> = (0..300).map(|number| format!("key{number}")).collect();
    keys.iter().for_each(|key| client.set(key, key.as_str(), 0).unwrap());
    let names: Vec<&str> = keys.iter().map(String::as_str).collect();
    let found: HashMap<String, String> = client.gets(&names).unwrap();
    assert!(found.len() == 300 && found.iter().all(|(key, value)| key == value));

    // In the text protocol, the library stops at the first line.
    if protocol == "binary" {
        let stats = client.stats().unwrap();
        assert_eq!(stats[0].1["curr_items"], "303");
        assert_eq!((stats[0].1["threads"].as_str(), stats[0].1["curr_connections"].as_str()), ("1", "1"));
    }
    client.flush().unwrap();
    assert_eq!(client.get::<String>("text").unwrap(), None);
}

#[test]
fn a_client_library_can_use_all_commands_in_the_text_protocol() {
    use_everything("ascii");
}

#[test]
fn a_client_library_can_use_all_commands_in_the_binary_protocol() {
    use_everything("binary");
}

#[test]
fn concurrent_clients_read_their_own_writes() {
    let address = serve(4, 64 << 20);
    client(address, "ascii").set("shared", 0, 0).unwrap();
    let threads: Vec<_> = (0..24)
        .map(|id| {
            thread::spawn(move || {
                let client = client(address, if id % 2 == 0 { "ascii" } else { "binary" });
                for round in 0..150u32 {
                    let key = format!("client{id}-{}", round % 10);
                    client.set(&key, round, 0).unwrap();
                    assert_eq!(client.get::<u32>(&key).unwrap(), Some(round));
                    client.increment("shared", 1).unwrap();
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(client(address, "ascii").get::<String>("shared").unwrap().as_deref(), Some("3600"));
}

#[test]
fn a_deep_pipeline_is_answered_in_order() {
    let mut stream = TcpStream::connect(serve(4, 64 << 20)).unwrap();
    let mut reader = stream.try_clone().unwrap();
    let writer = thread::spawn(move || {
        for number in 0..20_000 {
            write!(stream, "set k{} 0 0 5\r\n{number:05}\r\nget k{}\r\n", number % 50, number % 50).unwrap();
        }
        stream.shutdown(Shutdown::Write).unwrap();
    });
    let mut answer = String::new();
    reader.read_to_string(&mut answer).unwrap();
    writer.join().unwrap();
    let expected: String =
        (0..20_000).map(|n| format!("STORED\r\nVALUE k{} 0 5\r\n{n:05}\r\nEND\r\n", n % 50)).collect();
    assert!(answer == expected, "{} bytes instead of {}", answer.len(), expected.len());
}

/// Runs memccapable, which tests the commands of a server.
#[track_caller]
fn run_memccapable(arguments: &[&str]) {
    if !need(Need::Libmemcached) {
        return;
    }
    let address = serve(3, 64 << 20);
    let port = address.port().to_string();
    let mut command = Command::new("memccapable");
    let output = command.args(["-h", "127.0.0.1", "-p", &port]).args(arguments).output();
    let output = output.expect("memccapable starts");
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("[pass]"), "memccapable ran no test: {text}");
    assert!(output.status.success() && !text.contains("[FAIL]"), "{text}");
}

#[test]
fn the_server_passes_the_text_protocol_tests_of_libmemcached() {
    run_memccapable(&["-a"]);
}

#[test]
fn the_server_passes_the_binary_protocol_tests_of_libmemcached() {
    run_memccapable(&["-b"]);
}
