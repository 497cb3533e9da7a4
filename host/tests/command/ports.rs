//! Publication of ports: conflicts, addresses, and release.

use crate::sandbox::Sandbox;
use isola_tests::ports;
use std::net::{TcpListener, UdpSocket};

pub fn is_free(port: u16) -> bool {
    TcpListener::bind(("127.0.0.1", port)).is_ok()
}

#[test]
fn a_port_is_published_while_the_cell_runs() {
    let sandbox = Sandbox::up();
    let port = ports::free();
    sandbox.isola(&["run", "-d", "--name", "kv", "-p", &format!("{port}:11211"), "kv"]).ok();
    assert!(!is_free(port));
    assert_eq!(sandbox.isola(&["port", "kv"]).ok(), format!("11211/tcp -> 127.0.0.1:{port}\n"));
    assert!(sandbox.isola(&["ps"]).ok().contains(&format!("127.0.0.1:{port}->11211/tcp")));
    sandbox.isola(&["stop", "kv"]).ok();
    assert!(is_free(port));
    sandbox.isola(&["start", "kv"]).ok();
    assert!(!is_free(port));
    sandbox.isola(&["rm", "-f", "kv"]).ok();
    assert!(is_free(port));
}

#[test]
fn a_cell_with_a_port_in_use_is_not_created() {
    let sandbox = Sandbox::up();
    let port = ports::free();
    let tcp = TcpListener::bind(("127.0.0.1", port)).unwrap();
    let run = ["run", "-d", "--name", "kv", "-p", &format!("{port}:80"), "kv"];
    sandbox.isola(&run).failed(125, "in use by another program");
    assert_eq!(sandbox.isola(&["ps", "-q"]).ok(), "");
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = udp.local_addr().unwrap().port();
    sandbox.isola(&["run", "-d", "-p", &format!("{port}:80/udp"), "kv"]).failed(125, "/udp is in use");
    drop(tcp);
    sandbox.isola(&run).ok();
    let taken = ["run", "-d", "--name", "other", run[4], run[5], "kv"];
    sandbox.isola(&taken).failed(125, "for cell \"kv\" of machine \"default\"");
}

#[test]
fn a_conflict_of_two_ports_publishes_neither() {
    let sandbox = Sandbox::up();
    let port = ports::free();
    let (first, second) = (format!("{port}:80"), format!("{port}:81"));
    let run = ["run", "-d", "--name", "kv", "-p", &first, "-p", &second, "kv"];
    sandbox.isola(&run).failed(125, "is to lead to two ports of the cell");
    assert!(is_free(port));
    assert_eq!(sandbox.isola(&["ps", "-q"]).ok(), "");
    // The same, one after the other and before the cell runs.
    sandbox.isola(&["run", "-d", "--name", "kv", "-p", &first, "kv"]).ok();
    sandbox.isola(&["stop", "kv"]).ok();
    sandbox.isola(&["publish", "kv", &second]).failed(1, "is to lead to two ports of the cell");
    sandbox.isola(&["start", "kv"]).ok();
    assert_eq!(sandbox.isola(&["port", "kv"]).ok(), format!("80/tcp -> 127.0.0.1:{port}\n"));
}

#[test]
fn ports_come_and_go_while_the_cell_runs() {
    let sandbox = Sandbox::up();
    sandbox.isola(&["run", "-d", "--name", "kv", "kv"]).ok();
    assert_eq!(sandbox.isola(&["port", "kv"]).ok(), "");
    let port = ports::free();
    let spec = format!("{port}:11211");
    sandbox.isola(&["publish", "kv", &spec]).ok();
    assert!(!is_free(port));
    let any = sandbox.json(&["publish", "kv", "7000/udp"]);
    assert_eq!(any.as_array().unwrap().len(), 2, "{any}");
    assert_eq!(any[1]["protocol"], "udp");
    sandbox.isola(&["publish", "--remove", "kv", &spec]).ok();
    assert!(is_free(port));
    sandbox.isola(&["publish", "--remove", "kv", &spec]).failed(1, "is not published");
    // A port that was published later is published again as well.
    sandbox.isola(&["stop", "kv"]).ok();
    assert_eq!(sandbox.json(&["port", "kv"]).as_array().unwrap().len(), 0);
    sandbox.isola(&["start", "kv"]).ok();
    assert_eq!(sandbox.json(&["port", "kv"]).as_array().unwrap().len(), 1);
}

#[test]
fn a_cell_with_dhcp_is_published_at_the_address_it_gets() {
    let sandbox = Sandbox::up();
    sandbox.isola(&["run", "-d", "--name", "kv", "--network", "dhcp", "-p", "80", "kv"]).ok();
    assert_eq!(sandbox.json(&["port", "kv"])[0]["cell"], "10.0.2.128:80");
}

#[test]
fn a_port_of_a_crashed_cell_does_not_forward_to_the_next_cell() {
    let sandbox = Sandbox::up();
    let port = ports::free();
    let publish = format!("{port}:80");
    let run = ["run", "-d", "--name", "old", "--network", "dhcp", "-p", &publish, "kv", "crash"];
    sandbox.isola(&run).ok();
    sandbox.wait("the cell crashes", || sandbox.json(&["inspect", "old"])["state"] == "crashed");
    // By DHCP it gets the address of the crashed cell.
    sandbox.isola(&["run", "-d", "--name", "new", "--network", "dhcp", "kv"]).ok();
    assert!(is_free(port));
    assert_eq!(sandbox.json(&["port", "old"]).as_array().unwrap().len(), 0);
    sandbox.isola(&["kill", "new"]).ok();
    sandbox.isola(&["start", "old"]).ok();
    assert_eq!(sandbox.json(&["port", "old"]).as_array().unwrap().len(), 1);
}

#[test]
fn publication_without_a_network_fails_with_the_reason() {
    let sandbox = Sandbox::up();
    sandbox.isola(&["run", "-d", "--network", "none", "-p", "80", "kv"]).failed(125, "has no network");
    sandbox.isola(&["up", "tap", "--net", "tap:tap0", "--accel", "tcg"]).ok();
    sandbox.isola(&["--on", "tap", "run", "-d", "-p", "80", "kv"]).failed(125, "TAP network");
    sandbox.isola(&["--on", "tap", "run", "-d", "--name", "kv", "kv"]).ok();
    assert_eq!(sandbox.json(&["--on", "tap", "inspect", "kv"])["network"], "dhcp");
}
