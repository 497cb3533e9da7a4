//! The web server's cells, and both ends of NetPIPE: in a cell, and in a process of this host.

use isola_tests::isola::Isola;
use isola_tests::{ports, wait};
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

/// Sends a request on a new connection; returns head and body of the response, if one arrives.
fn get(port: u16, path: &str, fields: &str) -> Option<(String, Vec<u8>)> {
    let mut stream = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port))).ok()?;
    stream.set_read_timeout(Some(wait::TIMEOUT)).ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{fields}\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut all = Vec::new();
    stream.read_to_end(&mut all).ok()?;
    let end = all.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    Some((String::from_utf8_lossy(&all[..end]).into_owned(), all[end..].to_vec()))
}

#[test]
fn cells_serve_the_site_in_their_image_and_one_that_a_host_exports() {
    let directory = tempfile::tempdir().unwrap();
    let large: Vec<u8> = (0..700_001_u32).map(|n| (n * 7 % 251) as u8).collect();
    fs::create_dir(directory.path().join("sub")).unwrap();
    fs::write(directory.path().join("sub/large"), &large).unwrap();
    fs::write(directory.path().join("sub/index.html"), "<h1>sub</h1>").unwrap();
    let isola = Isola::new();
    let (export, own, theirs) = (ports::free(), ports::free(), ports::free());
    let exported = format!("{export}:9000");
    let path = directory.path().to_str().unwrap();
    let _home = isola.spawn(&["run", "--hosted", "-p", &exported, "files", "export", path]);
    wait::until_true("the files are exported", || TcpStream::connect(("127.0.0.1", export)).is_ok());
    isola.run(&["up", "--cores", "3", "--net", "user,host-access"]).ended_with(0);
    isola.run(&["run", "-d", "--name", "own", "-p", &format!("{own}:80"), "web"]).ended_with(0);
    let (published, first) = (format!("{theirs}:80"), format!("10.0.2.2:{export}"));
    isola.run(&["run", "-d", "--name", "theirs", "-p", &published, "web", "-j", &first]).ended_with(0);
    let (head, page) = wait::until("a page", || get(own, "/", ""));
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert_eq!(page, include_bytes!("../../../apps/web/site/index.html"));
    let (head, body) = wait::until("a file", || get(theirs, "/sub/large", ""));
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && body == large, "{head}");
    let (head, part) = get(theirs, "/sub/large", "Range: bytes=700000-\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 206 ") && part == large[700_000..], "{head}");
    assert_eq!(get(theirs, "/sub/", "").unwrap().1, b"<h1>sub</h1>");
    assert!(get(theirs, "/../sub/large", "").unwrap().0.starts_with("HTTP/1.1 404 "));
    isola.run(&["down"]).ended_with(0);
}

#[test]
fn messages_of_all_sizes_go_to_a_cell_and_back() {
    let isola = Isola::new();
    let port = ports::free();
    isola.run(&["up", "--cores", "2", "--net", "user,host-access"]).ended_with(0);
    isola.run(&["run", "-d", "--name", "pipe", "-p", &format!("{port}:5002"), "netpipe"]).ended_with(0);
    wait::until_true("the cell listens", || {
        isola.run(&["logs", "pipe"]).ended_with(0).out.contains("TCP port 5002")
    });
    let there = format!("10.0.2.2:{port}");
    let line = ["run", "--hosted", "netpipe", "connect", &there, "-u", "100", "-o", "json"];
    let out = isola.run(&line).ended_with(0).out;
    // On a busy host, the process reports events that took long.
    let lines: Vec<&str> = out.lines().filter(|line| !line.starts_with("watchdog: ")).collect();
    assert!(lines.len() > 20, "{out}");
    assert!(lines.iter().all(|line| line.starts_with("{\"bytes\":") && line.ends_with('}')), "{out}");
    isola.run(&["down"]).ended_with(0);
}
