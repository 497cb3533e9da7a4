//! The table beside a model: a list of flows.

use crate::packets::*;
use crate::*;
use isola_nat::timeouts;
use proptest::prelude::*;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A client sends a datagram from one of few ports to one of few ports of a host.
    Send { web: bool, from: u16, to: u16 },
    /// The host sends a datagram to a port outside of one of the flows that were opened, from one of its ports.
    Answer { flow: usize, from: u16 },
    /// Time passes.
    Wait { seconds: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => (any::<bool>(), 0..3u16, 0..5u16).prop_map(|(web, from, to)| Step::Send { web, from: 40_000 + from, to: 53 + to }),
        4 => (0..24usize, 0..5u16).prop_map(|(flow, from)| Step::Answer { flow, from: 53 + from }),
        1 => (0..90u64).prop_map(|seconds| Step::Wait { seconds }),
    ]
}

#[derive(Clone, Copy, Debug)]
struct Flow {
    web: bool,
    port: u16,
    remote: u16,
    outside: u16,
    used_at: Duration,
}

#[derive(Default)]
struct Model {
    flows: Vec<Flow>,
    /// All ports outside that flows ever had.
    outside: Vec<u16>,
}

impl Model {
    fn expire(&mut self, now: Duration) {
        self.flows.retain(|flow| flow.used_at + timeouts::DATAGRAMS > now);
    }

    /// Records a client's datagram, which left with the port `outside`.
    fn send(&mut self, web: bool, port: u16, remote: u16, outside: u16, now: Duration) {
        self.expire(now);
        let mut known =
            self.flows.iter_mut().find(|flow| (flow.web, flow.port, flow.remote) == (web, port, remote));
        if let Some(flow) = &mut known {
            assert_eq!(flow.outside, outside, "a flow keeps its port");
            flow.used_at = now;
            return;
        }
        let is_taken =
            |port: u16| self.flows.iter().any(|flow| (flow.outside, flow.remote) == (port, remote));
        assert!(!is_taken(outside), "no two flows have one port");
        assert_eq!(outside == port, !is_taken(port), "a free port is preserved");
        // The client's first to end makes room.
        if self.flows.iter().filter(|flow| flow.web == web).count() == FLOWS {
            let own = self.flows.iter().enumerate().filter(|(_, flow)| flow.web == web);
            let (first, _) = own.min_by_key(|(_, flow)| flow.used_at).unwrap();
            self.flows.remove(first);
        }
        self.flows.push(Flow { web, port, remote, outside, used_at: now });
        self.outside.push(outside);
    }

    fn answer(&mut self, outside: u16, remote: u16, now: Duration) -> Option<(bool, u16)> {
        self.expire(now);
        let flow = self.flows.iter_mut().find(|flow| (flow.outside, flow.remote) == (outside, remote))?;
        flow.used_at = now;
        Some((flow.web, flow.port))
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn the_table_is_that_of_the_model(steps in prop::collection::vec(step(), 0..150)) {
        let mut rig = Rig::with_forwards(&[]);
        // The rig's own flow ends first.
        rig.now += timeouts::ECHOES;
        let mut model = Model::default();
        for step in steps {
            // No two flows are of one age, so that their order is known.
            rig.now += Duration::from_millis(1);
            match step {
                Step::Send { web, from, to } => {
                    let client = if web { rig.web } else { rig.kv };
                    let sent = rig.out(client, &udp((client.ip, from), (HOST, to), b"x")).unwrap();
                    let ends = read(&sent, true);
                    prop_assert_eq!((ends.from.0, ends.to), (OWN, (HOST, to)));
                    model.send(web, from, to, ends.from.1, rig.now);
                }
                Step::Answer { flow, from } => {
                    let Some(outside) = model.outside.iter().rev().nth(flow).copied() else { continue };
                    let received = rig.receive(&udp((HOST, from), (OWN, outside), b"x")).unwrap();
                    let received = received.map(|(mac, packet)| (mac == rig.web.mac, read(&packet, true).to.1));
                    prop_assert_eq!(received, model.answer(outside, from, rig.now));
                }
                Step::Wait { seconds } => rig.now += Duration::from_secs(seconds),
            }
        }
    }
}
