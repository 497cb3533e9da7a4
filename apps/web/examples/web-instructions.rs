//! Answers one request again and again, to count the instructions of a request:
//!
//! ```sh
//! cargo build --release -p isola-web --example web-instructions
//! valgrind --tool=callgrind target/release/examples/web-instructions file 10000
//! ```
//!
//! Each request arrives in a frame of its own and its response is taken at once, as with a client that waits.

use std::env::args;
use std::hint::black_box;
use std::process::ExitCode;

use isola_iobuf::{Chain, IoBuf};
use isola_web::date::UnixSeconds;
use isola_web::{Prefaces, Session, SiteBuilder};

/// The request of a load generator.
const SHORT: &[u8] = b"GET /file HTTP/1.1\r\nHost: 127.0.0.1:8080\r\n\r\n";

/// The request of a browser.
const LONG: &[u8] = b"GET /file HTTP/1.1\r\nHost: 127.0.0.1:8080\r\n\
    User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0\r\n\
    Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8\r\n\
    Accept-Language: en-GB,en;q=0.5\r\nAccept-Encoding: gzip, deflate, br, zstd\r\n\
    Connection: keep-alive\r\nUpgrade-Insecure-Requests: 1\r\nSec-Fetch-Dest: document\r\n\
    Sec-Fetch-Mode: navigate\r\nSec-Fetch-Site: none\r\nPriority: u=0, i\r\n\r\n";

fn main() -> ExitCode {
    let request = match args().nth(1).as_deref() {
        Some("file") => SHORT.to_vec(),
        Some("browser") => LONG.to_vec(),
        Some("none") => b"GET /none HTTP/1.1\r\nHost: 127.0.0.1:8080\r\n\r\n".to_vec(),
        Some("pipeline") => SHORT.repeat(10),
        _ => {
            eprintln!("usage: instructions file|browser|none|pipeline COUNT");
            return ExitCode::FAILURE;
        }
    };
    let count = args().nth(2).and_then(|count| count.parse().ok()).unwrap_or(10_000);

    let mut site = SiteBuilder::new(1);
    let modified = Some(UnixSeconds(784_111_777));
    for number in 0..1_000_u32 {
        let name = if number == 0 { "file".to_owned() } else { format!("other{number}") };
        if site.add(&name, vec![b'x'; 148].leak(), modified).is_err() {
            return ExitCode::FAILURE;
        }
    }
    let site = site.build();
    let prefaces = Prefaces::new(UnixSeconds(1_800_000_000));
    let mut session = Session::new();
    let frame = IoBuf::copy_from_slice(&request);
    for _ in 0..count {
        session.receive(Chain::from(frame.clone()));
        session.serve(&site, &prefaces);
        black_box(session.take_output(usize::MAX));
    }
    ExitCode::SUCCESS
}
