//! Address configuration: DHCP by dnsmasq and Kea, router advertisements by radvd, DHCPv6 by Kea.

use crate::program::{self, RunningProgram};
use isola_need::{Need, need};
use isola_tests::isola::Isola;
use isola_tests::namespace::{self, SHARED};
use isola_tests::wait;
use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

/// The only address in the servers' pools.
const LEASED: Ipv4Addr = Ipv4Addr::new(10, 77, 3, 3);
const LEASED6: &str = "2001:db8:77::abcd";

/// The host's address on the prefix of the router advertisements, and the prefix.
const ROUTER6: &str = "2001:db8:77::1";
const PREFIX6: &str = "2001:db8:77::";

/// Runs `servers` in a namespace with a machine whose cell configures its address from them, and then `check`.
#[track_caller]
fn with_servers(
    servers: impl FnOnce(&Path) -> Vec<RunningProgram> + Send,
    check: impl FnOnce(&Isola) + Send,
) {
    if !need(Need::AddressServers) {
        return;
    }
    namespace::run(|| {
        program::run("ip", &["address", "add", &format!("{ROUTER6}/64"), "dev", "shared", "nodad"]);
        fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1").expect("root may set it");
        let folder = TempDir::new().expect("a folder");
        let _servers = servers(folder.path());
        let isola = Isola::up(&["--net", SHARED.network]);
        isola.run(&["run", "-d", "--name", "asks", "--network", "dhcp", "echo"]).ok();
        check(&isola);
    });
}

/// Returns whether an echo server answers at `address`.
fn echoes(address: IpAddr) -> bool {
    let echoed = || {
        let mut stream =
            TcpStream::connect_timeout(&SocketAddr::new(address, 7), Duration::from_secs(5)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
        stream.write_all(b"hello").ok()?;
        let mut answer = [0; 5];
        stream.read_exact(&mut answer).ok()?;
        Some(&answer == b"hello")
    };
    echoed() == Some(true)
}

fn has_leased_address(isola: &Isola) {
    wait::until_true("the cell has the address", || isola.cell("asks")["address"] == LEASED.to_string());
    wait::until_true("the cell answers at it", || echoes(LEASED.into()));
}

/// Returns an address below the prefix, from the host's neighbour table: that of the cell.
fn neighbour_on_prefix() -> Option<IpAddr> {
    // The cell answers an echo request to all nodes from its address or from its link-local one.
    let table = program::run("ip", &["-6", "neighbour", "show", "dev", "shared"]);
    let addresses = table.lines().filter_map(|line| line.split(' ').next()?.parse::<IpAddr>().ok());
    addresses.into_iter().find(|address| address.to_string().starts_with(PREFIX6.trim_end_matches("::")))
}

#[test]
fn dnsmasq_leases_an_address() {
    with_servers(
        |folder| {
            let lease = format!("--dhcp-leasefile={}", folder.join("leases").display());
            let range = format!("--dhcp-range={LEASED},{LEASED},255.255.0.0,2m");
            let fixed = ["--keep-in-foreground", "--conf-file=/dev/null", "--port=0", "--user=root"];
            let own = ["--interface=shared", "--bind-interfaces", "--dhcp-authoritative", &range, &lease];
            vec![RunningProgram::start("dnsmasq", &[&fixed[..], &own].concat())]
        },
        has_leased_address,
    );
}

#[test]
fn kea_leases_an_address() {
    with_servers(
        |folder| {
            let mut interfaces = interfaces();
            interfaces["dhcp-socket-type"] = "raw".into();
            let configuration = serde_json::json!({"Dhcp4": {
                "interfaces-config": interfaces,
                "lease-database": {"type": "memfile", "persist": false},
                "valid-lifetime": 120,
                "subnet4": [{
                    "id": 1, "subnet": "10.77.0.0/16", "pools": [{"pool": format!("{LEASED} - {LEASED}")}],
                    "option-data": [{"name": "routers", "data": "10.77.0.1"}]
                }]
            }});
            vec![kea("kea-dhcp4", folder, &configuration)]
        },
        has_leased_address,
    );
}

/// Returns Kea's interface configuration. Binding is retried until QEMU has opened the interface.
fn interfaces() -> serde_json::Value {
    serde_json::json!({
        "interfaces": ["shared"], "service-sockets-max-retries": 600, "service-sockets-retry-wait-time": 100
    })
}

/// Starts one of Kea's servers, with its files in `folder`.
fn kea(program: &str, folder: &Path, configuration: &serde_json::Value) -> RunningProgram {
    let file = folder.join("kea.conf");
    fs::write(&file, configuration.to_string()).expect("a file");
    let path = folder.to_str().expect("it is text");
    let file = file.to_str().expect("it is text");
    let environment = format!("KEA_PIDFILE_DIR={path}");
    let lock = format!("KEA_LOCKFILE_DIR={path}");
    RunningProgram::start("env", &[&environment, &lock, program, "-c", file])
}

/// Starts radvd with one prefix. `managed` is the flag that directs hosts to DHCPv6.
fn radvd(folder: &Path, managed: &str) -> RunningProgram {
    let file = folder.join("radvd.conf");
    let text = format!(
        "interface shared {{ AdvSendAdvert on; MinRtrAdvInterval 3; MaxRtrAdvInterval 4; AdvManagedFlag {managed};\n\
         prefix {PREFIX6}/64 {{ AdvOnLink on; AdvAutonomous {}; }}; }};\n",
        if managed == "on" { "off" } else { "on" }
    );
    fs::write(&file, text).expect("a file");
    let [file, pid] =
        [file, folder.join("radvd.pid")].map(|path| path.to_str().expect("it is text").to_owned());
    RunningProgram::start("radvd", &["--nodaemon", "--username=root", "--config", &file, "--pidfile", &pid])
}

#[test]
fn a_cell_forms_an_address_from_a_prefix_of_radvd() {
    with_servers(
        |folder| vec![radvd(folder, "off")],
        |_| {
            let address = wait::until("the cell has formed an address", || {
                // The cell answers an echo request to all nodes; the host's neighbour table then has its address.
                let all = ["-6", "-c", "1", "-W", "1", "-I", ROUTER6, "ff02::1%shared"];
                let _ = program::output("ping", &all);
                neighbour_on_prefix()
            });
            wait::until_true("the cell answers at it", || echoes(address));
        },
    );
}

#[test]
fn kea_leases_an_ipv6_address_after_radvd_has_set_the_managed_flag() {
    with_servers(
        |folder| {
            let configuration = serde_json::json!({"Dhcp6": {
                "data-directory": folder.to_str().expect("it is text"),
                "interfaces-config": interfaces(),
                "lease-database": {"type": "memfile", "persist": false},
                "preferred-lifetime": 100, "valid-lifetime": 120,
                "subnet6": [{
                    "id": 1, "subnet": format!("{PREFIX6}/64"), "interface": "shared",
                    "pools": [{"pool": format!("{LEASED6} - {LEASED6}")}]
                }]
            }});
            vec![radvd(folder, "on"), kea("kea-dhcp6", folder, &configuration)]
        },
        |_| {
            let address: IpAddr = LEASED6.parse().expect("an address");
            wait::until_true("the cell answers at the address", || echoes(address));
        },
    );
}
