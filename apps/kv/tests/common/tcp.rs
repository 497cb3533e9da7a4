//! A server behind real sockets on the loopback interface: one thread per connection, all on the same shards.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use isola_iobuf::{Chain, IoBuf};
use isola_kv::{Config, ServeOutcome, Server, Session, Tally, UnixTime};

fn now() -> UnixTime {
    UnixTime(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as u32)
}

/// Starts a server with `shard_count` shards that runs until the test process exits. Returns its address.
pub fn serve(shard_count: u16, memory_bytes: usize) -> SocketAddr {
    let config = Config::new(memory_bytes, shard_count).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = Server { started: now(), port: address.port(), ..super::server(config) };
    let server = Arc::new(server);
    thread::spawn(move || {
        for (core, stream) in listener.incoming().enumerate() {
            let server = server.clone();
            // A tally belongs to one thread.
            thread::spawn(move || run_connection(stream.unwrap(), &server, server.tallies.of(core % 64)));
        }
    });
    address
}

fn run_connection(mut stream: TcpStream, server: &Arc<Server>, tally: &Tally) {
    let mut session = Session::new(server.clone());
    stream.set_nodelay(true).unwrap();
    // The thread of a client that sends nothing more must end at some time.
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    tally.accepted();
    let mut frame = vec![0; 1460];
    loop {
        let served = session.serve(now());
        let written = session.take_output(usize::MAX);
        if written.parts().any(|part| stream.write_all(part).is_err()) || session.is_finished() {
            break;
        }
        if served == ServeOutcome::Busy {
            thread::yield_now();
        } else if session.wants_input() {
            match stream.read(&mut frame) {
                Ok(0) => session.end_of_input(),
                Ok(count) => session.receive(Chain::from(IoBuf::copy_from_slice(&frame[..count]))),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
    }
    tally.ended();
}
