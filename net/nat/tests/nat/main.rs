//! Translation, limits, addresses of clients, and hostile packets from both sides.

mod hostile;
mod limits;
mod model;
mod packets;
mod services;
mod translation;

use isola_nat::{
    ClientFrame, DropReason, Forward, Gateway, Limits, Outside, OutsideFrame, Prefix, is_of_connection,
};
use packets::{Mac, arp, frame};
use std::net::Ipv4Addr;
use std::time::Duration;

const OWN_MAC: Mac = [2, 0, 0, 0, 0, 1];
const ROUTER_MAC: Mac = [0x52, 0x55, 10, 0, 2, 2];
const OWN: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 16);
const ROUTER: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);
const HOST: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const OTHER_HOST: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
const PREFIX: &str = "10.77.0.0/16";
const FLOWS: usize = 8;

/// A client of a rig.
#[derive(Clone, Copy)]
struct Client {
    mac: Mac,
    ip: Ipv4Addr,
}

/// A gateway with two clients that knows its router.
struct Rig {
    gateway: Gateway,
    web: Client,
    kv: Client,
    now: Duration,
}

impl Rig {
    fn new() -> Self {
        Self::with_forwards(&["8080:web:80", "5353:kv:53/udp"])
    }

    fn with_forwards(forwards: &[&str]) -> Self {
        let forwards: Vec<Forward> = forwards.iter().map(|text| text.parse().unwrap()).collect();
        let limits = Limits { flows: FLOWS, clients: 4 };
        let mut gateway = Gateway::new(OWN_MAC, PREFIX.parse().unwrap(), forwards, limits);
        gateway.set_outside(Some(Outside {
            address: OWN,
            prefix_len: 24,
            router: Some(ROUTER),
            dns: [Some(Ipv4Addr::new(10, 0, 2, 3)), None],
        }));
        let [web, kv] = [("web", [2, 0, 0, 0, 1, 1]), ("kv", [2, 0, 0, 0, 1, 2])]
            .map(|(name, mac)| Client { mac, ip: gateway.connect(name, mac).unwrap() });
        let mut rig = Self { gateway, web, kv, now: Duration::from_secs(1) };
        rig.learn_router();
        rig
    }

    /// Sends a packet, so that the gateway asks for its router, and answers.
    fn learn_router(&mut self) {
        let probe = packets::echo(self.web.ip, HOST, packets::ECHO, 9);
        let asked =
            self.gateway.from_client(self.web.ip, &mut frame(OWN_MAC, self.web.mac, &probe), self.now);
        assert!(matches!(asked, Ok(ClientFrame::Waits(Some(_)))), "{asked:?}");
        let mut answer = arp(OWN_MAC, ROUTER_MAC, 2, (ROUTER_MAC, ROUTER), OWN);
        assert_eq!(self.gateway.from_outside(&mut answer, self.now), Ok(OutsideFrame::Own));
        let released = self.gateway.take_released().expect("the packet that waited");
        assert_eq!((&released[..6], &released[6..12]), (&ROUTER_MAC[..], &OWN_MAC[..]));
    }

    /// Sends a client's packet, and returns the one that leaves.
    fn out(&mut self, client: Client, packet: &[u8]) -> Result<Vec<u8>, DropReason> {
        let mut sent = frame(OWN_MAC, client.mac, packet);
        self.gateway.check(client.ip, &sent)?;
        match self.gateway.from_client(client.ip, &mut sent, self.now)? {
            ClientFrame::Outside => {
                while self.gateway.take_released().is_some() {}
                assert_eq!((&sent[..6], &sent[6..12]), (&ROUTER_MAC[..], &OWN_MAC[..]));
                Ok(sent[14..].to_vec())
            }
            other => panic!("{other:?}"),
        }
    }

    /// Receives a packet from outside, and returns the client's, with its hardware address.
    fn receive(&mut self, packet: &[u8]) -> Result<Option<(Mac, Vec<u8>)>, DropReason> {
        let mut received = frame(OWN_MAC, ROUTER_MAC, packet);
        match self.gateway.from_outside(&mut received, self.now)? {
            OutsideFrame::Own => {
                assert_eq!(&received[14..], packet, "the stack gets its packets as they are");
                Ok(None)
            }
            OutsideFrame::Client(mac) => {
                assert_eq!((&received[..6], &received[6..12]), (&mac[..], &OWN_MAC[..]));
                Ok(Some((mac, received[14..].to_vec())))
            }
        }
    }
}
