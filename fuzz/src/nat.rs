//! Network address translation of a service cell, with hostile clients and hosts outside.

use crate::input::InputReader;
use isola_nat::{ClientFrame, Gateway, Limits, Outside, OutsideFrame};
use std::net::Ipv4Addr;
use std::time::Duration;

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const CLIENT: [u8; 6] = [2, 0, 0, 0, 0, 2];
const OWN: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 16);
const FLOWS: usize = 4;

/// Passes frames of a client and of hosts outside to a gateway, where single bytes select the addresses that it knows. No
/// address of a client leaves, a client receives only packets for it, and the table is bounded.
pub fn frames(bytes: &[u8]) {
    let forwards = vec!["80:web:8080".parse().expect("it is one")];
    let prefix = "10.77.0.0/16".parse().expect("it is one");
    let mut gateway = Gateway::new(MAC, prefix, forwards, Limits { flows: FLOWS, clients: 1 });
    let router = Some(Ipv4Addr::new(10, 0, 2, 2));
    gateway.set_outside(Some(Outside { address: OWN, prefix_len: 24, router, dns: [router, None] }));
    let ip = gateway.connect("web", CLIENT).expect("the first");
    let (mut input, mut now) = (InputReader::new(bytes), Duration::ZERO);
    while !input.is_over() {
        let kind = input.byte();
        now += Duration::from_millis(u64::from(input.byte()) * 200);
        let len = usize::from(input.byte() & 127);
        let mut frame: Vec<u8> = (0..len).map(|_| input.byte()).collect();
        let mut put = |at: usize, part: &[u8]| {
            if let Some(place) = frame.get_mut(at..at + part.len()) {
                place.copy_from_slice(part);
            }
        };
        put(0, &MAC);
        if kind & 2 != 0 {
            put(12, &[8, 0, 0x45]);
            put(16, &(len.saturating_sub(14) as u16).to_be_bytes());
            put(20, &[0, 0, 64, [1, 6, 17, 1][usize::from(kind >> 2 & 3)]]);
            put(if kind & 1 == 0 { 26 } else { 30 }, &if kind & 1 == 0 { ip } else { OWN }.octets());
        } else {
            put(12, &[8, 6, 0, 1, 8, 0, 6, 4]);
        }
        if kind & 1 == 0 {
            if gateway.check(ip, &frame).is_err() {
                continue;
            }
            if gateway.from_client(ip, &mut frame, now) == Ok(ClientFrame::Outside) {
                assert_eq!(frame[26..30], OWN.octets(), "no address of a client leaves");
            }
        } else if let Ok(OutsideFrame::Client(mac)) = gateway.from_outside(&mut frame, now) {
            assert_eq!((mac, &frame[30..34]), (CLIENT, &ip.octets()[..]));
        }
        while gateway.take_released().is_some() {}
        assert!(gateway.flows_of(ip) <= FLOWS);
    }
}
