//! The engine behind real sockets on the loopback interface: a thread a shard, a thread a connection.
//!
//! Shards answer over channels, so the responses to one connection come back in any order, as they do
//! between cores.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use isola_iobuf::{Chain, IoBuf};
use isola_kv::{Config, Request, Response, Server, Session, Shard, ShardId, Ticket, UnixTime};

/// What goes to a shard's thread.
enum Message {
    Work { ticket: Ticket, request: Request, back: Sender<(Ticket, Response)> },
    Opened,
    Closed,
}

fn now() -> UnixTime {
    UnixTime(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as u32)
}

/// Starts a server of `shard_count` shards that lives as long as the test process, and returns its address.
pub fn serve(shard_count: u16, memory_bytes: usize) -> SocketAddr {
    let config = Config::new(memory_bytes, shard_count).unwrap();
    let shards: Vec<Sender<Message>> = (0..shard_count)
        .map(|id| {
            let (sender, receiver) = channel();
            let shard = Shard::new(ShardId(id), &config);
            thread::spawn(move || run_shard(shard, &receiver));
            sender
        })
        .collect();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = Server { started: now(), port: address.port(), ..super::server(config) };
    let server = Arc::new(server);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (server, shards) = (server.clone(), shards.clone());
            thread::spawn(move || run_connection(stream.unwrap(), Session::new(server), &shards));
        }
    });
    address
}

fn run_shard(mut shard: Shard, messages: &Receiver<Message>) {
    for message in messages {
        match message {
            Message::Work { ticket, request, back } => {
                let response = shard.execute(now(), request);
                // A connection that is gone needs no response.
                let _ = back.send((ticket, response));
            }
            Message::Opened => shard.connection_opened(),
            Message::Closed => shard.connection_closed(),
        }
    }
}

fn run_connection(mut stream: TcpStream, mut session: Session, shards: &[Sender<Message>]) {
    stream.set_nodelay(true).unwrap();
    // A client that goes silent for good does not keep its thread for good.
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    shards[0].send(Message::Opened).unwrap();
    let (back, completions) = channel();
    let mut frame = vec![0; 1460];
    while !session.is_finished() {
        while let Some(work) = session.next_work() {
            let message = Message::Work { ticket: work.ticket, request: work.request, back: back.clone() };
            shards[usize::from(work.shard.0)].send(message).unwrap();
        }
        let written = session.take_output(usize::MAX);
        if written.parts().any(|part| stream.write_all(part).is_err()) {
            break;
        }
        if session.in_flight() > 0 {
            let (ticket, response) = completions.recv().unwrap();
            session.complete(ticket, response);
        } else if session.wants_input() {
            match stream.read(&mut frame) {
                Ok(0) => session.end_of_input(),
                Ok(count) => session.receive(Chain::from(IoBuf::copy_from_slice(&frame[..count]))),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
    }
    shards[0].send(Message::Closed).unwrap();
}
