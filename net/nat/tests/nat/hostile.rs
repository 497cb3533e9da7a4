//! Hostile frames from both sides.

use crate::packets::*;
use crate::*;
use proptest::prelude::*;

/// A frame that is nearly one that the gateway serves.
#[derive(Clone, Debug)]
struct Near {
    kind: usize,
    ports: (u16, u16),
    flags: u8,
    /// Places whose bytes are replaced.
    changes: Vec<(usize, u8)>,
    len: usize,
}

fn near() -> impl Strategy<Value = Near> {
    let port = prop_oneof![Just(8080u16), Just(5353), Just(67), Just(53), 40_000..40_004u16, any::<u16>()];
    let changes = prop::collection::vec((0..90usize, any::<u8>()), 0..4);
    (0..8usize, (port.clone(), port), any::<u8>(), changes, 0..120usize)
        .prop_map(|(kind, ports, flags, changes, len)| Near { kind, ports, flags, changes, len })
}

impl Near {
    fn frame(&self, from: (Mac, Ipv4Addr), to: (Mac, Ipv4Addr)) -> Vec<u8> {
        let (source, destination) = ((from.1, self.ports.0), (to.1, self.ports.1));
        let packet = match self.kind {
            0 => tcp(source, destination, self.flags, b"data"),
            1 => udp(source, destination, b"data"),
            2 => echo(from.1, to.1, ECHO, self.ports.0),
            3 => echo(from.1, to.1, ECHO_REPLY, self.ports.0),
            4 => error(from.1, to.1, &udp(destination, source, b"data"), self.len),
            5 => error(from.1, to.1, &tcp(destination, source, self.flags, b"data"), self.len),
            6 => {
                let mut message = vec![0; 236];
                message[..3].copy_from_slice(&[1, 1, 6]);
                message[28..34].copy_from_slice(&from.0);
                message.extend_from_slice(&[99, 130, 83, 99, 53, 1, self.flags % 9, 255]);
                udp((from.1, 68), (to.1, 67), &message)
            }
            _ => {
                let mut frame = arp(to.0, from.0, self.flags % 3, from, to.1);
                self.change(&mut frame);
                return frame;
            }
        };
        let mut frame = frame(to.0, from.0, &packet);
        self.change(&mut frame);
        frame
    }

    fn change(&self, frame: &mut Vec<u8>) {
        for (at, value) in &self.changes {
            if let Some(byte) = frame.get_mut(*at) {
                *byte = *value;
            }
        }
        if self.len < 40 {
            frame.truncate(self.len * 2);
        }
    }
}

/// Sends a frame of a client or from outside, and checks the result.
fn exchange(rig: &mut Rig, from_web: bool, from_outside: bool, mut bytes: Vec<u8>) {
    rig.now += Duration::from_millis(400);
    let prefix: Prefix = PREFIX.parse().unwrap();
    if from_outside {
        let before = bytes.clone();
        match rig.gateway.from_outside(&mut bytes, rig.now) {
            Ok(OutsideFrame::Client(mac)) => {
                let client = if mac == rig.web.mac { rig.web } else { rig.kv };
                assert_eq!(mac, client.mac);
                assert_eq!((&bytes[..6], &bytes[6..12]), (&mac[..], &OWN_MAC[..]));
                assert_eq!(address(&bytes, 30), client.ip);
                assert_eq!(address(&before, 30), OWN);
            }
            Ok(OutsideFrame::Own) => assert_eq!(bytes, before, "the stack gets its frames as they are"),
            Err(_) => {}
        }
    } else {
        let client = if from_web { rig.web } else { rig.kv };
        if rig.gateway.check(client.ip, &bytes).is_err() {
            return;
        }
        match rig.gateway.from_client(client.ip, &mut bytes, rig.now) {
            Ok(ClientFrame::Outside) => {
                assert_eq!(&bytes[6..12], &OWN_MAC[..]);
                assert_eq!(address(&bytes, 26), OWN, "no address of a client leaves");
                assert!(!prefix.contains(address(&bytes, 30)));
            }
            Ok(ClientFrame::Answer(frame)) => {
                assert_eq!((&frame[..6], &frame[6..12]), (&client.mac[..], &OWN_MAC[..]))
            }
            _ => {}
        }
    }
    while let Some(frame) = rig.gateway.take_released() {
        assert_eq!(&frame[6..12], &OWN_MAC[..]);
    }
    for client in [rig.web, rig.kv] {
        assert!(rig.gateway.flows_of(client.ip) <= FLOWS);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_bytes_from_any_side(
        frames in prop::collection::vec((any::<bool>(), any::<bool>(), prop::collection::vec(any::<u8>(), 0..100)), 0..20),
    ) {
        let mut rig = Rig::new();
        for (from_web, from_outside, bytes) in frames {
            exchange(&mut rig, from_web, from_outside, bytes);
        }
    }

    #[test]
    fn nearly_valid_frames_from_any_side(
        frames in prop::collection::vec((any::<bool>(), any::<bool>(), near()), 0..60),
    ) {
        let mut rig = Rig::new();
        for (from_web, from_outside, near) in frames {
            let client = if from_web { rig.web } else { rig.kv };
            let bytes = if from_outside {
                near.frame((ROUTER_MAC, HOST), (OWN_MAC, OWN))
            } else {
                near.frame((client.mac, client.ip), (OWN_MAC, HOST))
            };
            exchange(&mut rig, from_web, from_outside, bytes);
        }
    }
}
