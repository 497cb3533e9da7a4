//! Service cells of a network: many cells share the network device of one.

use isola_need::LONG;
use isola_tests::isola::Isola;
use isola_tests::wait;
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

const CELL: [&str; 4] = ["--cores", "1", "--memory", "32M"];

/// How long an exchange with a published port may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Starts a cell in the background.
fn start(isola: &Isola, name: &str, network: &str, options: &[&str], command: &[&str]) {
    let run = [&["run", "-d", "--name", name, "--network", network], &CELL[..], options, command].concat();
    isola.run(&run).ok();
}

fn serve(isola: &Isola) {
    start(isola, "net", "auto", &["--service", "net", "--accept", "*", "--restart", "always"], &[]);
}

/// Returns whether a server at a published port returns what it gets.
fn echoes(port: &str, text: &str) -> bool {
    let exchange = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(port)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(text.as_bytes())?;
        let mut back = vec![0; text.len()];
        stream.read_exact(&mut back)?;
        Ok(String::from_utf8_lossy(&back).into_owned())
    };
    exchange().is_ok_and(|back| back == text)
}

/// Returns the host's address of a cell with one published port.
fn published(isola: &Isola, cell: &str) -> String {
    let view = isola.cell(cell);
    view["ports"][0]["host"].as_str().unwrap_or_else(|| panic!("{view}")).to_owned()
}

fn received_bytes(isola: &Isola, cell: &str) -> u64 {
    isola.cell(cell)["traffic"]["received_bytes"].as_u64().unwrap_or_default()
}

/// Waits until a cell has received two more megabytes.
fn advances(isola: &Isola, cell: &str) {
    let before = received_bytes(isola, cell);
    wait::until_true(&format!("{cell} receives more"), || received_bytes(isola, cell) > before + (2 << 20));
}

#[test]
fn cells_share_one_device_and_go_on_when_their_service_cell_is_killed() {
    let isola = Isola::up(&["--cores", "5", "--memory", "512M", "--nics", "1"]);
    // A client may start before its service cell.
    start(&isola, "echo", "auto@net", &["-p", "7"], &["echo"]);
    serve(&isola);
    start(&isola, "pipe", "auto@net", &[], &["netpipe"]);
    let port = published(&isola, "echo");
    wait::until_true("a host outside reaches a client", || echoes(&port, "from outside"));
    let address = isola.cell("pipe")["address"].as_str().unwrap().to_owned();
    let there = format!("{address}:5002");
    start(&isola, "web", "dhcp@net", &[], &["netpipe", "connect", &there, "-l", "65536", "-s", "to"]);
    advances(&isola, "pipe");
    let report = isola.json(&["inspect", "net"]).to_string();
    for name in ["echo", "pipe", "web"] {
        assert!(report.contains(&format!("\"{name}\"")), "an activity for each client: {report}");
    }
    for _ in 0..2 {
        isola.run(&["kill", "net"]).ok();
        isola.run(&["start", "net"]).ok();
        advances(&isola, "pipe");
    }
    wait::until_true("a host outside reaches a client again", || echoes(&port, "once more"));
}

#[test]
fn clients_behind_address_translation_reach_outside_and_go_on_when_it_is_killed() {
    let isola = Isola::up(&["--cores", "6", "--memory", "512M", "--nics", "2"]);
    let options = ["--service", "net", "--accept", "*", "--restart", "always", "-p", "8080"];
    start(&isola, "net", "auto", &options, &["nat", "10.77.0.0/16", "8080:echo:7"]);
    // A host outside, with a device of its own.
    start(&isola, "sink", "auto", &[], &["netpipe"]);
    let there = format!("{}:5002", isola.cell("sink")["address"].as_str().unwrap());
    start(&isola, "echo", "auto@net", &[], &["echo"]);
    // Rounds so long that the clients send until the machine ends.
    let send = ["netpipe", "connect", &there, "-l", "65536", "-s", "to", "-t", "20000"];
    start(&isola, "first", "auto@net", &[], &send);
    start(&isola, "second", "dhcp@net", &[], &send);
    let port = published(&isola, "net");
    wait::until_true("a host outside reaches a client", || echoes(&port, "from outside"));
    advances(&isola, "sink");
    for name in ["echo", "first", "second"] {
        let cell = isola.cell(name);
        assert!(cell["address"].as_str().is_some_and(|ip| ip.starts_with("10.77.")), "{cell}");
    }
    let refused = isola.run(&["run", "--network", "10.77.0.9/16@net", "echo"]);
    refused.failed(125, "assigns those of its clients");
    let refused = isola.run(&["run", "--network", "auto@net", "-p", "7", "echo"]);
    refused.failed(125, "published by its service cell");
    isola.run(&["kill", "net"]).ok();
    isola.run(&["start", "net"]).ok();
    // Both connections go on: the table learns them again.
    let sent = |name: &str| isola.cell(name)["traffic"]["sent_bytes"].as_u64().unwrap_or_default();
    let before = ["first", "second"].map(sent);
    wait::until_true("both clients send more", || {
        ["first", "second"].map(sent).iter().zip(before).all(|(now, before)| *now > before + (2 << 20))
    });
    let port = published(&isola, "net");
    wait::until_true("a host outside reaches a client again", || echoes(&port, "once more"));
}

#[test]
fn a_client_that_is_not_accepted_has_no_network() {
    let isola = Isola::up(&["--cores", "3", "--memory", "256M", "--nics", "1"]);
    start(&isola, "net", "auto", &["--service", "net", "--accept", "echo"], &[]);
    start(&isola, "web", "auto@net", &[], &["echo"]);
    wait::until_true("web prints the reason", || {
        isola.run(&["logs", "web"]).ok().contains("does not accept")
    });
    let refused = isola.run(&["run", "--network", "none@net", "echo"]);
    refused.failed(2, "is no network");
    let long = "a-cell-with-a-name-that-is-too-long";
    let refused = isola.run(&["run", "--name", long, "--network", "dhcp@net", "echo"]);
    refused.failed(125, "a name of at most 24 bytes");
}

/// The number of clients; the second with `cargo xtask test machine --long`.
const MANY: usize = 24;
const VERY_MANY: usize = 200;

/// The machine has more cores than a cell can have: the last clients have some with ids above 64.
#[test]
fn many_cells_on_a_machine_of_more_than_64_cores_share_one_device() {
    let count = if std::env::var_os(LONG).is_some() { VERY_MANY } else { MANY };
    let cores = (count + 3).max(70).to_string();
    let isola = Isola::up(&["--cores", &cores, "--memory", "2G", "--nics", "1"]);
    let name = |client: usize| format!("cell-{client}");
    let port = |client: usize| (8000 + client).to_string();
    let published: Vec<_> = (0..count).flat_map(|client| ["-p".to_owned(), port(client)]).collect();
    let forwards: Vec<_> = (0..count).map(|client| format!("{}:{}:7", port(client), name(client))).collect();
    let network = ["run", "-d", "--name", "net", "--memory", "64M", "--service", "net", "--accept", "*"];
    let published: Vec<_> = published.iter().map(String::as_str).collect();
    let nat = ["nat", "10.77.0.0/16", &forwards.join(",")];
    isola.run(&[&network[..], &published, &nat].concat()).ok();
    for client in 0..count {
        // From the highest on, as those of the lowest ids are assigned first.
        let id = (69 - client.min(1)).to_string();
        let core = if client < 2 { ["--core-ids", &id] } else { ["--cores", "1"] };
        let cell = ["run", "-d", "--name", &name(client), "--network", "auto@net", "--memory", "4M"];
        isola.run(&[&cell[..], &core, &["echo"]].concat()).ok();
    }
    let cell = isola.cell("net");
    let ports = cell["ports"].as_array().unwrap();
    assert_eq!(ports.len(), count);
    for (client, port) in ports.iter().enumerate() {
        let host = port["host"].as_str().unwrap();
        wait::until_true(&format!("{} answers at {port}", name(client)), || echoes(host, &name(client)));
    }
    let addresses = (0..count).map(|client| isola.cell(&name(client))["address"].to_string());
    assert_eq!(addresses.collect::<BTreeSet<_>>().len(), count, "each has an address of its own");
    for (client, id) in [(0, 69), (1, 68)] {
        assert_eq!(isola.cell(&name(client))["cores"][0]["id"], id);
    }
}
