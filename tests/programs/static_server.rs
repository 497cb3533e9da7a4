//! A server of files over HTTP/1.1, without other crates: a thread for each connection.

use std::fs::File;
use std::io::{BufRead, BufReader, Write, copy};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{env, panic, process, thread};

static ANSWERS: AtomicU64 = AtomicU64::new(0);

/// Answers the requests of a connection.
fn serve(stream: TcpStream, folder: &Path) -> std::io::Result<()> {
    let mut answers = stream.try_clone()?;
    let mut requests = BufReader::new(stream);
    loop {
        let mut line = String::new();
        if requests.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let mut header = String::new();
        while requests.read_line(&mut header)? > 2 {
            header.clear();
        }
        let path = line.split(' ').nth(1).unwrap_or("/").trim_start_matches('/').to_owned();
        if path == "stop" {
            println!("answers: {}", ANSWERS.load(Ordering::Relaxed));
            process::exit(3);
        }
        let is_last = line.trim_end().ends_with("HTTP/1.0");
        ANSWERS.fetch_add(1, Ordering::Relaxed);
        match File::open(folder.join(&path)) {
            Ok(mut file) if !path.contains("..") => {
                let length = file.metadata()?.len();
                write!(answers, "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n")?;
                // sendfile.
                copy(&mut file, &mut answers)?;
            }
            _ => write!(answers, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")?,
        }
        if is_last {
            return Ok(());
        }
    }
}

fn main() {
    let folder = env::args_os().nth(1).expect("a folder");
    // A thread that panics is unwound, and its memory unmapped.
    let panicked = panic::catch_unwind(|| thread::spawn(|| panic!("on purpose")).join().is_err());
    println!("serving {}", panicked.unwrap());
    let listener = TcpListener::bind(("0.0.0.0", 80)).unwrap();
    for stream in listener.incoming() {
        let (stream, folder) = (stream.unwrap(), folder.clone());
        thread::spawn(move || serve(stream, Path::new(&folder)));
    }
}
