//! Unix sockets: waiting, limits, names, and open files in flight.

mod common;

use common::{
    System, accept, at, named, now, of, poll, receive, receive_message, send, send_files, send_message,
    socket_file,
};
use isola_linux_abi::net::{SO_PASSCRED, SO_RCVTIMEO, SO_SNDTIMEO, SOL_SOCKET};
use isola_linux_abi::numbers as linux;
use isola_linux_files::{Credentials, EventCounter, Events, OpenFile};
use isola_linux_memory::UserBuffer;
use isola_linux_sockets::{
    Errno, MOST_IN_FLIGHT, MOST_RIGHTS, MessageFlags, PeerCredentials, ReceivedMessage, SentMessage,
    SocketKind, Waiting,
};
use proptest::prelude::*;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

/// The bytes that the queues of a sender hold, beside those of the message that fills them.
const SEND_BUFFER: usize = 212_992;

fn counter() -> Arc<OpenFile> {
    EventCounter::open(0, 0).unwrap()
}

#[test]
fn a_sender_waits_for_space_and_small_messages_are_bounded_too() {
    let system = System::new();
    for kind in [SocketKind::Stream, SocketKind::Datagram, SocketKind::SeqPacket] {
        let [one, other] = system.pair(kind);
        let mut count = 0;
        while send(&one, b"x") == Ok(1) {
            count += 1;
        }
        assert_eq!(send(&one, b"x"), Err(Errno::EAGAIN));
        // A message has its place's memory as a cost; a stream shares places.
        let most = if kind == SocketKind::Stream { SEND_BUFFER } else { SEND_BUFFER / 256 + 1 };
        assert!((500..=most).contains(&count), "{kind:?}: {count}");
        assert!(!one.ready().intersects(Events::OUT));
        let (mut buffer, mut message) = (UserBuffer::of_bytes(b"y"), SentMessage::default());
        let mut sent = Box::pin(socket_file(&one).send(&mut buffer, &mut message, Waiting::Permitted));
        assert_eq!(poll(&mut sent), Poll::Pending);
        receive(&other, 4096).unwrap();
        assert_eq!(poll(&mut sent), Poll::Ready(Ok(1)));
        drop(sent);
        let mut left = 0;
        while let Ok(bytes) = receive(&other, 4096) {
            left += bytes.len();
        }
        assert!(left > 0 && one.ready().intersects(Events::OUT));
        assert_eq!(of(&one).unsent_len(), Ok(0));
    }
}

#[test]
fn a_socket_peeks_at_its_own_message() {
    let system = System::new();
    let socket = system.socket(SocketKind::Datagram);
    system.bind(&socket, &named("own")).unwrap();
    assert_eq!(system.send_to(&socket, b"to itself", named("own")), Ok(9));
    let (bytes, message) = receive_message(&socket, 64, MessageFlags::PEEK).unwrap();
    assert_eq!((bytes.as_slice(), message.address), (&b"to itself"[..], Some(named("own"))));
    assert_eq!(receive(&socket, 64), Ok(b"to itself".to_vec()));
    assert_eq!(receive(&socket, 64), Err(Errno::EAGAIN));
}

#[test]
fn calls_end_at_their_time_limits() {
    let system = System::new();
    let [one, _other] = system.pair(SocketKind::Stream);
    let limit = [2_u64, 0].map(u64::to_ne_bytes).concat();
    for name in [SO_RCVTIMEO, SO_SNDTIMEO] {
        system.with(|caller| socket_file(&one).set_option(SOL_SOCKET, name, &limit, caller)).unwrap();
    }
    let (mut buffer, mut message) = (UserBuffer::of_bytes(b"x"), ReceivedMessage::default());
    let file = socket_file(&one);
    let advance = |ns| system.clock.0.fetch_add(ns, Ordering::Relaxed);
    let mut received =
        Box::pin(file.receive(&mut buffer, MessageFlags::NONE, &mut message, Waiting::Permitted));
    assert_eq!(poll(&mut received), Poll::Pending);
    advance(1_999_999_999);
    assert_eq!(poll(&mut received), Poll::Pending);
    advance(1);
    assert_eq!(poll(&mut received), Poll::Ready(Err(Errno::EAGAIN)));
    drop(received);
    // A stream that was sent in part returns the part.
    let (mut large, mut sent) = (UserBuffer::of_bytes(&vec![0; 1 << 20]), SentMessage::default());
    let mut sending = Box::pin(file.send(&mut large, &mut sent, Waiting::Permitted));
    assert_eq!(poll(&mut sending), Poll::Pending);
    advance(2_000_000_000);
    assert!(matches!(poll(&mut sending), Poll::Ready(Ok(count)) if (100_000..1 << 20).contains(&count)));
    drop(sending);
    // A negative limit ends at once.
    let negative = [u64::MAX, 0].map(u64::to_ne_bytes).concat();
    system.with(|caller| socket_file(&one).set_option(SOL_SOCKET, SO_RCVTIMEO, &negative, caller)).unwrap();
    let received = now(file.receive(&mut buffer, MessageFlags::NONE, &mut message, Waiting::Permitted));
    assert_eq!(received, Err(Errno::EAGAIN));
    // `read` has the limit, too.
    assert_eq!(now(one.read(&mut buffer)), Err(Errno::EAGAIN));
}

#[test]
fn a_connection_needs_write_permission_of_its_path() {
    let system = System::new();
    let listener = system.socket(SocketKind::Stream);
    system.bind(&listener, &at("/socket")).unwrap();
    system.listen(&listener, 5).unwrap();
    let client = system.socket(SocketKind::Stream);
    let stranger = Credentials { user: 5, group: 5, groups: Arc::from([]), capabilities: 0 };
    let connect = |credentials: &Credentials| {
        let file = socket_file(&client);
        system.with_credentials(credentials, |caller| {
            now(file.connect(&at("/socket"), Waiting::Refused, caller))
        })
    };
    // The umask of the test's process removed the others' right.
    assert_eq!(connect(&stranger), Err(Errno::EACCES));
    assert_eq!(connect(&Credentials::root()), Ok(()));
    assert_eq!(of(&client).peer_credentials().process, 7);
    let list = system.unix.list();
    assert!(
        list.lines().any(|line| line.contains(" 00010000 0001 01 ") && line.ends_with(" /socket")),
        "{list}"
    );
    assert_eq!(list.lines().count(), 4);
}

#[test]
fn a_name_is_free_when_its_socket_is_closed_and_a_path_stays_refused() {
    let system = System::new();
    let first = system.socket(SocketKind::Datagram);
    system.bind(&first, &named("x")).unwrap();
    let second = system.socket(SocketKind::Datagram);
    assert_eq!(system.bind(&second, &named("x")), Err(Errno::EADDRINUSE));
    drop(first);
    assert_eq!(system.bind(&second, &named("x")), Ok(()));
    let bound = system.socket(SocketKind::Stream);
    system.bind(&bound, &at("/path")).unwrap();
    drop(bound);
    let client = system.socket(SocketKind::Stream);
    assert_eq!(system.connect(&client, &at("/path")), Err(Errno::ECONNREFUSED));
    assert_eq!(system.bind(&client, &at("/path")), Err(Errno::EADDRINUSE));
    assert_eq!(system.unix.socket_count(), 2);
}

#[test]
fn a_closed_listener_closes_the_connections_that_wait() {
    let system = System::new();
    let listener = system.socket(SocketKind::Stream);
    system.bind(&listener, &named("l")).unwrap();
    system.listen(&listener, 0).unwrap();
    let client = system.socket(SocketKind::Stream);
    system.connect(&client, &named("l")).unwrap();
    let file = counter();
    assert_eq!(send_files(&client, b"x", &[&file]), Ok(1));
    let late = system.socket(SocketKind::Stream);
    let mut waits = Box::pin(async {
        let files = isola_linux_files::Caller {
            view: &system.view,
            credentials: &system.credentials,
            descriptors: &system.descriptors,
            ids: isola_linux_files::CallerIds { process: 1, thread: 1 },
        };
        let caller =
            isola_linux_sockets::SocketCaller { files: &files, credentials: PeerCredentials::UNKNOWN };
        socket_file(&late).connect(&named("l"), Waiting::Permitted, &caller).await
    });
    assert_eq!(poll(&mut waits), Poll::Pending);
    drop(listener);
    assert_eq!(poll(&mut waits), Poll::Ready(Err(Errno::ECONNREFUSED)));
    assert_eq!(receive(&client, 1), Err(Errno::ECONNRESET));
    assert_eq!((system.unix.files_in_flight(), Arc::strong_count(&file)), (0, 1));
    assert_eq!(accept(&client).err(), Some(Errno::EINVAL));
}

#[test]
fn sockets_that_no_process_can_reach_are_collected() {
    let system = System::new();
    for _ in 0..1000 {
        // A socket in its own queue, and two in each other's.
        let [one, other] = system.pair(SocketKind::Stream);
        assert_eq!(send_files(&other, b"x", &[&one]), Ok(1));
        assert_eq!(send_files(&one, b"x", &[&other, &one]), Ok(1));
        // A socket in the queue of a connection that was never accepted, of a listening socket in its own queue.
        let listener = system.socket(SocketKind::Stream);
        system.bind(&listener, &named("listener")).unwrap();
        system.listen(&listener, 5).unwrap();
        let client = system.socket(SocketKind::Stream);
        system.connect(&client, &named("listener")).unwrap();
        assert_eq!(send_files(&client, b"x", &[&listener, &client]), Ok(1));
        drop((listener, client));
        let name = system.socket(SocketKind::Stream);
        // The abandoned listener may still have the name until a collection.
        let _ = system.bind(&name, &named("listener"));
        drop(name);
        let rest = system.pair(SocketKind::Stream);
        for _ in 0..20 {
            assert_eq!(send_files(&rest[0], b"x", &[&rest[1]]), Ok(1));
        }
    }
    assert!(system.unix.files_in_flight() < 100, "{}", system.unix.files_in_flight());
    assert!(system.unix.socket_count() < 100, "{}", system.unix.socket_count());
}

#[test]
fn a_collection_spares_sockets_that_a_process_can_reach() {
    let system = System::new();
    let [open, other] = system.pair(SocketKind::Stream);
    // A chain of which only the first queue has an owner.
    let mut last = None;
    for _ in 0..50 {
        let [one, inner] = system.pair(SocketKind::Stream);
        if let Some(last) = last.take() {
            assert_eq!(send_files(&one, b"c", &[&last]), Ok(1));
        }
        // The peer stays in the queue as well, so that the end is no hang-up.
        assert_eq!(send_files(&one, b"d", &[&one]), Ok(1));
        last = Some(inner);
    }
    assert_eq!(send_files(&other, b"x", &[&last.unwrap()]), Ok(1));
    // Enough sockets in flight for several collections.
    let noise = system.pair(SocketKind::Stream);
    for _ in 0..200 {
        assert_eq!(send_files(&noise[0], b"n", &[&noise[1]]), Ok(1));
        receive_message(&noise[1], 1, MessageFlags::NONE).unwrap();
    }
    let mut current = open;
    for depth in 0..50 {
        let mut rights = Vec::new();
        while let Ok((_, message)) = receive_message(&current, 1, MessageFlags::NONE) {
            rights.extend(message.ancillary.rights);
        }
        assert!(!rights.is_empty(), "depth {depth}");
        current = rights.swap_remove(0);
    }
}

#[test]
fn a_chain_of_any_length_is_closed_without_depth() {
    let system = System::new();
    let mut last = counter();
    let end = last.clone();
    for _ in 0..30_000 {
        let [one, other] = system.pair(SocketKind::Datagram);
        assert_eq!(send_files(&one, b"x", &[&last]), Ok(1));
        last = other;
    }
    assert_eq!(Arc::strong_count(&end), 2);
    drop(last);
    assert_eq!((Arc::strong_count(&end), system.unix.files_in_flight()), (1, 0));
}

#[test]
fn files_in_flight_are_limited() {
    let system = System::new();
    let file = counter();
    let files = vec![&file; MOST_RIGHTS];
    let mut pairs = vec![system.pair(SocketKind::Stream)];
    assert_eq!(send_files(&pairs[0][0], b"x", &vec![&file; MOST_RIGHTS + 1]), Err(Errno::EINVAL));
    loop {
        match send_files(&pairs.last().unwrap()[0], b"x", &files) {
            Ok(1) => {}
            Err(Errno::EAGAIN) => pairs.push(system.pair(SocketKind::Stream)),
            other => {
                assert_eq!(other, Err(Errno::ETOOMANYREFS));
                break;
            }
        }
    }
    let count = system.unix.files_in_flight();
    assert!((MOST_IN_FLIGHT - MOST_RIGHTS + 1..=MOST_IN_FLIGHT).contains(&count), "{count}");
    drop(pairs);
    assert_eq!((system.unix.files_in_flight(), Arc::strong_count(&file)), (0, 1));
}

#[test]
fn a_failed_message_keeps_no_file() {
    let system = System::new();
    let [one, other] = system.pair(SocketKind::Stream);
    drop(other);
    let file = counter();
    assert_eq!(send_files(&one, b"x", &[&file]), Err(Errno::EPIPE));
    let [one, other] = system.pair(SocketKind::Stream);
    send_files(&one, b"x", &[&file]).unwrap();
    // `read` passes no files: it closes them.
    let mut buffer = UserBuffer::of_bytes(b"..");
    assert_eq!(now(other.read(&mut buffer)), Ok(1));
    assert_eq!((system.unix.files_in_flight(), Arc::strong_count(&file)), (0, 1));
}

#[test]
fn credentials_are_those_of_the_sender() {
    let system = System::new();
    let [one, other] = system.pair(SocketKind::Stream);
    let credentials = |process| PeerCredentials { process, user: 1, group: 2 };
    let message = |process| SentMessage { sender: Some(credentials(process)), ..SentMessage::default() };
    send_message(&one, b"first", message(3)).unwrap();
    send_message(&one, b" and more", message(3)).unwrap();
    send_message(&one, b"other", message(4)).unwrap();
    of(&other).settings().switch(SO_PASSCRED, true);
    // Bytes of different senders are not mixed.
    for (bytes, process) in [(&b"first and more"[..], 3), (b"other", 4)] {
        let (received, message) = receive_message(&other, 100, MessageFlags::NONE).unwrap();
        assert_eq!((&received[..], message.ancillary.credentials), (bytes, Some(credentials(process))));
    }
    assert_eq!(PeerCredentials::parse(credentials(9).encode()), credentials(9));
}

#[test]
fn epoll_sees_the_space_in_the_queue_of_a_datagram_peer() {
    let system = System::new();
    let receiver = system.socket(SocketKind::Datagram);
    system.bind(&receiver, &named("log")).unwrap();
    let sender = system.socket(SocketKind::Datagram);
    system.connect(&sender, &named("log")).unwrap();
    while send(&sender, b"x").is_ok() {}
    let mut wait = Box::pin(sender.wait(Events::OUT));
    assert_eq!(poll(&mut wait), Poll::Pending);
    receive(&receiver, 1).unwrap();
    assert_eq!(poll(&mut wait), Poll::Ready(()));
    drop(wait);
    send(&sender, b"x").unwrap();
    drop(receiver);
    assert_eq!(send(&sender, b"x"), Err(Errno::ECONNREFUSED));
    assert_eq!(linux::O_RDWR, sender.flags() & linux::O_ACCMODE);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// A stream is a queue of bytes, in both directions, whatever the lengths of sends and receives.
    #[test]
    fn a_stream_is_a_queue_of_bytes(
        steps in prop::collection::vec((prop::bool::ANY, prop::bool::ANY, 1..50_000_usize), 1..60),
    ) {
        let system = System::new();
        let pair = system.pair(SocketKind::Stream);
        let mut model: [VecDeque<u8>; 2] = [VecDeque::new(), VecDeque::new()];
        let mut next = 0_u8;
        for (sends, direction, len) in steps {
            let direction = usize::from(direction);
            let (from, to) = (&pair[direction], &pair[1 - direction]);
            if sends {
                let bytes: Vec<u8> = (0..len).map(|at| next.wrapping_add((at / 7) as u8)).collect();
                match send(from, &bytes) {
                    Ok(count) => {
                        next = next.wrapping_add(1);
                        model[direction].extend(&bytes[..count]);
                    }
                    Err(error) => prop_assert_eq!((error, model[direction].is_empty()), (Errno::EAGAIN, false)),
                }
            } else {
                match receive(to, len) {
                    Ok(bytes) => {
                        let expected: Vec<u8> =
                            model[direction].drain(..len.min(model[direction].len())).collect();
                        prop_assert_eq!(bytes, expected);
                    }
                    Err(error) => prop_assert_eq!((error, model[direction].is_empty()), (Errno::EAGAIN, true)),
                }
            }
            for (end, queue) in [(&pair[0], &model[1]), (&pair[1], &model[0])] {
                prop_assert_eq!(of(end).readable_len(), Ok(queue.len()));
                prop_assert_eq!(end.ready().intersects(Events::IN), !queue.is_empty());
            }
        }
    }
}

#[test]
fn a_receiver_resolves_no_more_of_its_buffer_than_a_stream_has() {
    let system = System::new();
    let [one, other] = system.pair(SocketKind::Stream);
    let file = socket_file(&other);
    assert_eq!(file.most_received(Waiting::Permitted), None, "it may get all that it asks for");
    assert_eq!(file.most_received(Waiting::Refused), Some(1));
    send(&one, b"hello").unwrap();
    send(&one, b" you").unwrap();
    assert_eq!(file.most_received(Waiting::Permitted), Some(9));
    assert_eq!(file.most_received(Waiting::Refused), Some(9));
    // The end of a message of a datagram socket is lost if its buffer is too short.
    let [one, other] = system.pair(SocketKind::Datagram);
    send(&one, b"hello").unwrap();
    assert_eq!(socket_file(&other).most_received(Waiting::Refused), None);
}
