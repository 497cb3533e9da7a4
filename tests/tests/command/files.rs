//! Files of a hosted process, served by a native cell: `files export` and `files serve`.

use isola_tests::isola::Isola;
use isola_tests::{ports, wait};
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

/// Returns status line and body of the response, if one arrives.
fn request(port: u16, head: &str) -> Option<(String, Vec<u8>)> {
    let mut stream = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port))).ok()?;
    stream.write_all(format!("{head}\r\nHost: x\r\n\r\n").as_bytes()).ok()?;
    let mut all = Vec::new();
    stream.read_to_end(&mut all).ok()?;
    let end = all.windows(4).position(|four| four == b"\r\n\r\n")?;
    let status = all.split(|byte| *byte == b'\r').next()?;
    Some((String::from_utf8_lossy(status).into_owned(), all[end + 4..].to_vec()))
}

#[test]
fn a_cell_serves_the_files_of_a_hosted_process() {
    let directory = tempfile::tempdir().unwrap();
    let large: Vec<u8> = (0..700_001_u32).map(|n| (n * 7 % 251) as u8).collect();
    fs::write(directory.path().join("large"), &large).unwrap();
    fs::write(directory.path().join("a name"), "text\n").unwrap();
    fs::create_dir(directory.path().join("sub")).unwrap();
    let isola = Isola::new();
    let (export, http) = (ports::free(), ports::free());
    let exported = format!("{export}:9000");
    let path = directory.path().to_str().unwrap();
    let home = isola.spawn(&["run", "--hosted", "-p", &exported, "files", "export", path]);
    wait::until_true("the files are exported", || TcpStream::connect(("127.0.0.1", export)).is_ok());
    isola.run(&["up", "--cores", "2", "--net", "user,host-access"]).ended_with(0);
    let (published, first) = (format!("{http}:80"), format!("10.0.2.2:{export}"));
    isola.run(&["run", "-d", "--name", "files", "-p", &published, "files", "serve", &first]).ended_with(0);
    let get = |path: &str| wait::until("a response", || request(http, &format!("GET {path} HTTP/1.1")));
    let ok = "HTTP/1.1 200 OK".to_owned();
    let (status, body) = get("/large");
    assert!(status == ok && body == large);
    assert_eq!(get("/a%20name?x"), (ok.clone(), b"text\n".to_vec()));
    assert_eq!(get("/"), (ok.clone(), b"a name\nlarge\nsub/\n".to_vec()));
    assert_eq!(request(http, "HEAD /large HTTP/1.1"), Some((ok, Vec::new())));
    assert_eq!(get("/none").0, "HTTP/1.1 404 Not Found");
    assert_eq!(get("/../../etc/passwd").0, "HTTP/1.1 403 Forbidden");
    assert_eq!(request(http, "POST / HTTP/1.1").unwrap().0, "HTTP/1.1 405 Method Not Allowed");
    // Without its home, the cell answers with an error and continues to run.
    home.signal("INT");
    home.wait().ended_with(0);
    let gone = wait::until("an answer", || Some(get("/large").0).filter(|status| status.contains("502")));
    assert_eq!(gone, "HTTP/1.1 502 Bad Gateway");
    // With its home again, it serves again.
    fs::write(directory.path().join("large"), b"another").unwrap();
    let home = isola.spawn(&["run", "--hosted", "-p", &exported, "files", "export", path]);
    let back =
        wait::until("an answer", || Some(get("/large")).filter(|(status, _)| *status == "HTTP/1.1 200 OK"));
    assert_eq!(back.1, b"another");
    home.signal("INT");
    home.wait().ended_with(0);
    isola.run(&["down"]).ended_with(0);
}

#[test]
fn files_rejects_wrong_usage_with_a_reason() {
    let isola = Isola::new();
    let run = |arguments: &[&str], code: i32, words: &str| {
        let output = isola.run(&[&["run", "--hosted", "files"], arguments].concat()).ended_with(code).out;
        assert!(output.contains(words), "{output}");
    };
    run(&[], 2, "usage: files export");
    run(&["export", "/nowhere"], 1, "/nowhere: the directory cannot be opened");
    run(&["serve", "nobody"], 2, "usage: files export");
}
