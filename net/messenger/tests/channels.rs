//! Machines that are cells of one machine: how they find each other, without a network, and with hostile peers.

mod common;

use common::{
    ECHO, PORT, SLOW, SharedMachineId, bytes, echo, first_answer, hello, is_set, join_first, serve_all,
};
use isola_abi::links::LinkRefusal;
use isola_abi::query::{AnswerRecord, ConnectedMachine, FrameFilter, Line, Query, Records};
use isola_channels::{Channel, ChannelError, open};
use isola_ebbs::platform;
use isola_events::{sleep, timeout};
use isola_hosted::{Loss, switch};
use isola_iobuf::Chain;
use isola_link_sim::Machine;
use isola_messenger::{
    CallError, FirstMachine, JoinError, MAX_PAYLOAD, MachineId, Refusal, TransportKind, call,
    connected_machines, disconnected, host, id_map, join, rejoin, serve,
};
use isola_net::query;
use isola_test_cells::{TestCell, run_cells};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Runs a first machine in the cell `kv` of a machine without networks, until the cell `web` ends.
fn with_first_machine<F: Future<Output = ()> + 'static>(web: impl Fn() -> F + Send + Sync + 'static) {
    let machine = Machine::new();
    let is_over = Arc::new(AtomicBool::new(false));
    let over = is_over.clone();
    let first = machine.start("kv", move |_| {
        isola_events::spawn_task(serve_all()).detach();
        let over = over.clone();
        async move { is_set(&over).await }
    });
    let ended = machine.start("web", move |_| web()).join();
    is_over.store(true, Ordering::Release);
    first.join().unwrap();
    ended.unwrap();
}

fn kv() -> FirstMachine {
    "kv".parse().unwrap()
}

/// Joins the cell `kv` once it serves.
async fn join_kv() -> MachineId {
    loop {
        match join(kv()).await {
            Ok(number) => return number,
            Err(JoinError::Channel(ChannelError::Closed)) => sleep(Duration::from_millis(1)).await,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Opens a channel to the messenger of `kv` once it serves.
async fn open_kv() -> Channel {
    loop {
        match open("kv/messenger").await {
            Ok(channel) => return channel,
            Err(ChannelError::Closed) => sleep(Duration::from_millis(1)).await,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Returns the machines in this cell's answer to a query about connections.
fn reported_machines(filter: FrameFilter, most: u32) -> Vec<ConnectedMachine> {
    let query = Query::Connections { filter, most };
    let number = platform().queries().put(Line::Facts, &query.encode()).unwrap();
    query::answer_new(|_, query| panic!("a query of another kind: {query:?}"));
    let mut records = Records::default();
    records.add(&platform().report().answers.on(Line::Facts).piece(number, number, 0, 4096)).unwrap();
    let mut machines = Vec::new();
    while let Some(record) = records.next_record().unwrap() {
        match AnswerRecord::decode(record).unwrap() {
            AnswerRecord::ConnectedMachine(machine) => machines.push(machine),
            AnswerRecord::Begin { cores } => {
                assert_eq!(cores, 1, "a core ends the answer behind these records")
            }
            other => panic!("{other:?}"),
        }
    }
    machines
}

#[test]
fn an_answer_about_connections_has_the_transport_of_each_machine() {
    let any = FrameFilter::default;
    with_first_machine(move || async move {
        join_kv().await;
        let first = ConnectedMachine { number: MachineId::FIRST.number(), over_channel: true };
        assert_eq!(reported_machines(any(), 100), [first]);
        assert_eq!(reported_machines(any(), 0), []);
        assert_eq!(reported_machines(FrameFilter { port: Some(PORT), host: None }, 100), []);
    });
    let [a, b] = switch(Loss::Never);
    run_cells([
        TestCell::new(1, 1, a, serve_all).until_others_end(),
        TestCell::new(2, 1, b, move || async move {
            join_first().await;
            let first = ConnectedMachine { number: MachineId::FIRST.number(), over_channel: false };
            assert_eq!(reported_machines(any(), 100), [first]);
        }),
    ]);
}

#[test]
fn cells_without_a_network_call_each_other() {
    with_first_machine(|| async {
        let number = join_kv().await;
        assert_eq!(number, MachineId::here());
        assert_eq!(connected_machines().await, [(MachineId::FIRST, TransportKind::Channel)]);
        let block: Vec<u8> = (0..MAX_PAYLOAD as u32).map(|n| (n * 7 % 251) as u8).collect();
        for len in [0, 1, 56, 57, 16_383, 16_384, 16_385, MAX_PAYLOAD] {
            let answer = call(MachineId::FIRST, ECHO, bytes(&block[..len])).await.unwrap();
            assert!(answer.to_vec() == block[..len], "{len} bytes");
        }
        let unknown = join(FirstMachine::Cell("none".into())).await;
        assert_eq!(unknown, Err(JoinError::Channel(ChannelError::Refused(LinkRefusal::NoSuchCell))));
    });
}

#[test]
fn a_first_machine_is_named_by_its_address_or_its_cell() {
    let address = "10.0.2.2:9000".parse::<FirstMachine>().unwrap();
    assert_eq!(address, FirstMachine::Address("10.0.2.2:9000".parse().unwrap()));
    assert!("[fd00::1]:9000".parse::<FirstMachine>().is_ok());
    assert_eq!("kv.2_a-b".parse(), Ok(FirstMachine::Cell("kv.2_a-b".into())));
    for text in ["", "kv/get", "10.0.2.2:", "a b", &"long".repeat(100)] {
        assert!(text.parse::<FirstMachine>().is_err(), "{text}");
    }
}

#[test]
fn a_cell_that_accepts_no_channels_is_joined_by_tcp() {
    let machine = Machine::new();
    machine.refuse_channels_to("cell-1");
    let [a, b] = switch(Loss::Never);
    run_cells([
        TestCell::new(1, 1, a, serve_all).on_machine(machine).until_others_end(),
        TestCell::new(2, 1, b, || async {
            // The common part checks that the transport is TCP.
            join_first().await;
            assert_eq!(call(MachineId::FIRST, ECHO, bytes(b"1")).await.unwrap().to_vec(), b"1");
            let by_name = join(FirstMachine::Cell("cell-1".into())).await;
            let refused = ChannelError::Refused(LinkRefusal::NotAccepted);
            assert_eq!(by_name, Err(JoinError::Channel(refused)));
            // The connection that it has stays.
            assert_eq!(call(MachineId::FIRST, ECHO, bytes(b"2")).await.unwrap().to_vec(), b"2");
        })
        .on_machine(machine),
    ]);
}

/// The first machine is a cell of another machine, and this machine has a cell of the same name with an application of its
/// own.
#[test]
fn a_cell_of_the_same_name_does_not_stand_in_for_the_first_machine() {
    static IS_OVER: AtomicBool = AtomicBool::new(false);
    let (here, elsewhere) = (Machine::new(), Machine::new());
    let namesake = here.start("cell-1", |_| async {
        let _listening = host(PORT).unwrap();
        is_set(&IS_OVER).await;
        assert_eq!(connected_machines().await, [], "no machine is admitted by mistake");
    });
    let [a, b] = switch(Loss::Never);
    run_cells([
        TestCell::new(1, 1, a, serve_all).on_machine(elsewhere).until_others_end(),
        TestCell::new(2, 1, b, || async {
            join_first().await;
            assert_eq!(call(MachineId::FIRST, ECHO, bytes(b"1")).await.unwrap().to_vec(), b"1");
        })
        .on_machine(here),
    ]);
    IS_OVER.store(true, Ordering::Release);
    namesake.join().unwrap();
}

#[test]
fn the_first_machine_forwards_between_channels_and_tcp() {
    static NEAR: SharedMachineId = SharedMachineId::new();
    static FAR: SharedMachineId = SharedMachineId::new();
    static DONE: [AtomicBool; 2] = [AtomicBool::new(false), AtomicBool::new(false)];
    async fn call_other(other: &SharedMachineId, own: usize) {
        let other = other.get().await;
        first_answer(other, ECHO).await;
        let block: Vec<u8> = (0..300_000_u32).map(|n| (n % 253) as u8).collect();
        assert!(call(other, ECHO, bytes(&block)).await.unwrap().to_vec() == block);
        DONE[own].store(true, Ordering::Release);
        is_set(&DONE[1 - own]).await;
    }
    let machine = Machine::new();
    let [a, b, c] = switch(Loss::Never);
    run_cells([
        TestCell::new(1, 1, a, serve_all).on_machine(machine).until_others_end(),
        TestCell::new(2, 1, b, || async {
            let number = join(FirstMachine::Cell("cell-1".into()));
            let mut number = number.await;
            while number == Err(JoinError::Channel(ChannelError::Closed)) {
                number = join(FirstMachine::Cell("cell-1".into())).await;
            }
            let _echo = serve(ECHO, echo).unwrap();
            NEAR.set(number.unwrap());
            call_other(&FAR, 0).await;
        })
        .on_machine(machine),
        TestCell::new(3, 1, c, || async {
            let number = join_first().await;
            let _echo = serve(ECHO, echo).unwrap();
            FAR.set(number);
            call_other(&NEAR, 1).await;
        }),
    ]);
}

#[test]
fn a_first_machine_that_dies_fails_the_calls_and_is_joined_again() {
    static IS_CALLED: AtomicBool = AtomicBool::new(false);
    static IS_OVER: AtomicBool = AtomicBool::new(false);
    let machine = Machine::new();
    let first = machine.start("kv", |_| async {
        let _listening = host(PORT).unwrap();
        let _slow = serve(SLOW, |_| async {
            IS_CALLED.store(true, Ordering::Release);
            std::future::pending().await
        });
        is_set(&IS_CALLED).await;
    });
    let web = machine.start("web", |_| async {
        let number = join_kv().await;
        let pending = call(MachineId::FIRST, SLOW, Chain::new()).await;
        assert_eq!(pending, Err(CallError::Refused(Refusal::Disconnected)));
        disconnected().await;
        assert_eq!(call(MachineId::FIRST, ECHO, Chain::new()).await, Err(CallError::NoSuchMachine));
        assert_eq!(rejoin(kv()).await, number);
        assert_eq!(call(MachineId::FIRST, ECHO, bytes(b"1")).await.unwrap().to_vec(), b"1");
        IS_OVER.store(true, Ordering::Release);
    });
    first.join().unwrap();
    let again = machine.start("kv", |_| async {
        let _listening = host(PORT).unwrap();
        let _map = id_map::serve().unwrap();
        let _echo = serve(ECHO, echo).unwrap();
        is_set(&IS_OVER).await;
    });
    web.join().unwrap();
    again.join().unwrap();
}

#[test]
fn a_peer_that_violates_the_protocol_loses_its_channel_alone() {
    with_first_machine(|| async {
        let hello = hello().to_vec();
        let locate = [&[0, 0, 0, 28, 0, 0, 0, 6], &[0; 16][..], b"isola\0\0\x02"].concat();
        let other_incarnation = {
            let mut frame = hello.clone();
            frame[23] = 1;
            frame
        };
        let violations: [&[&[u8]]; 7] = [
            &[&[0xff; 64]],
            &[&[0; 32]],
            &[&[0, 16, 0, 28]],
            &[&locate, &locate],
            &[&other_incarnation],
            &[&hello, &hello],
            &[&hello, &[0, 0, 0, 27], &[0; 100]],
        ];
        for (number, packets) in violations.iter().enumerate() {
            let channel = open_kv().await;
            for packet in *packets {
                // It may be closed before the last packet.
                let _ = channel.write(packet).await;
            }
            // A length without the rest of its frame is no violation yet.
            if number != 2 {
                let closed = timeout(Duration::from_secs(5), channel.closed()).await;
                assert!(closed.is_ok(), "violation {number} has no consequence");
            }
        }
        // A peer that closes its channel at each length of the hello.
        for len in 0..=hello.len() {
            let channel = open_kv().await;
            channel.write(&hello[..len]).await.unwrap();
        }
        // The hello in single bytes, between empty packets.
        let channel = open_kv().await;
        for byte in &hello {
            channel.write(&[*byte]).await.unwrap();
            channel.write(&[]).await.unwrap();
        }
        let welcome = channel.read().await.unwrap();
        assert_eq!((welcome.len(), welcome[7]), (32, 2));
        // Random bytes after the greeting.
        fastrand::seed(7);
        for _ in 0..50 {
            let channel = open_kv().await;
            channel.write(&hello).await.unwrap();
            let mut bytes = vec![0; fastrand::usize(..300)];
            fastrand::fill(&mut bytes);
            let _ = channel.write(&bytes).await;
        }
        join_kv().await;
        assert_eq!(call(MachineId::FIRST, ECHO, bytes(b"1")).await.unwrap().to_vec(), b"1");
    });
}
