//! Third-party clients: a client library in both protocols, and libmemcached's tools.

use isola_need::{Need, need};
use isola_tests::isola::Isola;
use isola_tests::kv::{Connection, value};
use isola_tests::service::{Service, published};
use memcache::Client;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::process::Command;

/// The largest value that the server accepts: 1 MiB.
const LARGEST: usize = 1 << 20;

fn client(address: SocketAddr, protocol: &str) -> Client {
    Client::connect(format!("memcache://{address}?timeout=60&protocol={protocol}")).unwrap()
}

/// Tests the server's operations through the client library, in both protocols.
fn use_library(address: SocketAddr) {
    for protocol in ["ascii", "binary"] {
        let client = client(address, protocol);
        client.flush().unwrap();
        assert!(client.version().unwrap()[0].1.contains("isola"));
        client.set("text", "value", 0).unwrap();
        assert_eq!(client.get::<String>("text").unwrap().as_deref(), Some("value"));
        assert_eq!(client.get::<String>("missing").unwrap(), None);
        client.append("text", "z").unwrap();
        client.prepend("text", "a").unwrap();
        client.set("number", 10, 0).unwrap();
        assert_eq!(client.increment("number", 5).unwrap(), 15);
        assert_eq!(client.decrement("number", 20).unwrap(), 0);
        assert!(client.touch("number", 100).unwrap() && client.delete("number").unwrap());
        let items: HashMap<String, (String, u32, Option<u64>)> = client.gets(&["text", "missing"]).unwrap();
        assert_eq!((items.len(), items["text"].0.as_str()), (1, "avaluez"));
        let version = items["text"].2.unwrap();
        assert!(client.cas("text", "newer", 0, version).unwrap());
        assert!(!client.cas("text", "newest", 0, version).unwrap());

        // Enough keys for every shard.
        let keys: Vec<String> = (0..200).map(|number| format!("key{number}")).collect();
        keys.iter().for_each(|key| client.set(key, key.as_str(), 0).unwrap());
        let names: Vec<&str> = keys.iter().map(String::as_str).collect();
        let found: HashMap<String, String> = client.gets(&names).unwrap();
        assert!(found.len() == 200 && found.iter().all(|(key, value)| key == value));
    }
}

/// Stores and reads values of the largest size, in both protocols.
fn use_large_values(address: SocketAddr) {
    let [text, binary] = ["ascii", "binary"].map(|protocol| client(address, protocol));
    for number in 0..8 {
        let (key, large) = (format!("large{number}"), value(number, LARGEST));
        let (writer, reader) = if number % 2 == 0 { (&text, &binary) } else { (&binary, &text) };
        writer.set(&key, &large[..], 0).unwrap();
        let got = reader.get::<Vec<u8>>(&key).unwrap();
        assert!(got.as_ref() == Some(&large), "{key} was altered: {:?} bytes", got.map(|got| got.len()));
    }
    assert!(text.set("larger", &value(0, LARGEST + 1)[..], 0).is_err());
    assert_eq!(binary.get::<String>("larger").unwrap(), None);
}

/// Runs one of libmemcached's tools against a server, and returns its output.
fn tool(program: &str, address: SocketAddr, arguments: &[&str]) -> String {
    let mut command = Command::new(program);
    match program {
        "memccapable" => command.args(["-h", &address.ip().to_string(), "-p", &address.port().to_string()]),
        _ => command.arg(format!("--servers={address}")),
    };
    let output = command.args(arguments).output().expect("a tool of libmemcached starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
    text
}

#[test]
fn a_cell_serves_a_client_library() {
    let service = Service::published(&[], &["--cores", "3", "--memory", "64M"]);
    use_library(service.address);
    use_large_values(service.address);
    service.end();
}

/// More large values than fit in memory: the least recently used ones are evicted.
#[test]
fn large_values_evict_each_other() {
    let service = Service::published(&[], &["--cores", "2", "--memory", "64M"]);
    let mut connection = service.connect();
    for number in 0..80 {
        // Of sizes just above and just below a size class.
        let large = value(number, LARGEST - 999 * (number as usize % 3));
        connection.set(&format!("large{number}"), &large).unwrap();
        assert!(connection.get(&format!("large{number}")).unwrap().as_ref() == Some(&large));
    }
    assert_eq!(connection.get("large0").unwrap(), None);
    let items = connection.stat("curr_items").unwrap();
    assert!((40..=48).contains(&items), "{items} items of 1 MiB in 48 MiB");
    service.end();
}

#[test]
fn a_cell_serves_the_tools_of_libmemcached() {
    if !need(Need::Libmemcached) {
        return;
    }
    let service = Service::published(&["--machine", "microvm"], &["--cores", "2"]);
    let address = service.address;
    for protocol in ["-a", "-b"] {
        let text = tool("memccapable", address, &[protocol]);
        assert!(text.contains("All tests passed") && !text.contains("[FAIL]"), "{text}");
    }
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).display().to_string();
    let large = value(7, LARGEST - 1024);
    std::fs::write(file("large"), &large).unwrap();
    std::fs::write(file("small"), "small").unwrap();
    tool("memcping", address, &[]);
    tool("memccp", address, &["--set", &file("large")]);
    tool("memccp", address, &["--binary", "--add", &file("small")]);
    tool("memccat", address, &["--file", &file("got"), "large"]);
    assert!(std::fs::read(file("got")).unwrap().starts_with(&large), "the file was altered");
    assert_eq!(tool("memccat", address, &["small"]).trim_end(), "small");
    tool("memcexist", address, &["small"]);
    tool("memctouch", address, &["--expire=100", "small"]);
    // Not `curr_items`, which falls at any time as the cell removes the expired items of memccapable.
    let before = service.connect().stat("delete_hits").unwrap();
    tool("memcrm", address, &["small"]);
    assert_eq!(service.connect().get("small").unwrap(), None);
    let output = tool("memcstat", address, &[]);
    assert!(output.contains(&format!("delete_hits: {}\n", before + 1)), "{before} before, then {output}");
    tool("memcflush", address, &[]);
    assert_eq!(service.connect().get("large").unwrap(), None);
    service.end();
}

#[test]
fn a_standalone_image_serves_clients() {
    if !need(Need::Libmemcached) {
        return;
    }
    for machine in ["q35", "microvm"] {
        let isola = Isola::new();
        let run = ["run", "-d", "--standalone", "--name", "alone", "--accel", "tcg", "--machine", machine];
        let view =
            isola.json(&[&run[..], &["--cores", "2", "--memory", "64M", "-p", "11211", "kv"]].concat());
        let address = published(&view);
        Connection::establish(address);
        use_library(address);
        use_large_values(address);
        let text = tool("memccapable", address, &["-b"]);
        assert!(text.contains("All tests passed"), "{text}");
        let qemu = isola.qemu("alone").unwrap();
        isola.run(&["rm", "--force", "alone"]).ok();
        assert!(!isola_tests::isola::is_alive(qemu) && !isola.machine_folder("alone").exists());
    }
}
