//! The link: ARP, neighbour discovery, and the configuration of IPv6 addresses.

use super::receive::Addressee;
use super::{Stack, stack_parts};
use crate::base::{
    ALL_MLD_ROUTERS, ALL_NODES, ALL_ROUTERS, Counter, Duration, Event, Evidence, Instant, Ipv6Settings,
    MacAddr, group_mac, solicited_node,
};
use crate::configuration::{
    Autoconf, Conflict, DHCP6_CLIENT_PORT, DHCP6_SERVER_PORT, DHCP6_SERVERS, Dhcp6Change, Dhcp6Client,
    Outgoing,
};
use crate::ip::{
    Advert, Answers, ArpPacket, Icmp6ErrorKind, LearnOutcome, LinkMessage, LinkMessageKind, MakeEntry,
    NdpMessage, REACHABLE_V6, RouterAdvert, SilentNeighbour, Strength, Waiting, neighbour_advertisement,
    neighbour_solicitation, router_solicitation,
};
use crate::tcp::{SearchOutcome, StackParts};
use crate::udp;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv6Addr, SocketAddr};
use etherparse::ArpOperation;
use isola_iobuf::{Chain, IoBuf};

/// The longest reachable time that a router may announce (RFC 4861 6.2.1).
const LONGEST_REACHABLE_MS: u32 = 3_600_000;

/// Time after the assignment of an address within which a conflict is attributed to its announcement.
const FRESH_ADDRESS: Duration = Duration::from_secs(5);
/// Minimum interval between two defences of an address (RFC 5227 1.1).
const DEFEND_INTERVAL: Duration = Duration::from_secs(10);

impl Stack {
    pub(super) fn receive_arp(&mut self, bytes: &[u8]) -> Result<(), Counter> {
        let packet = ArpPacket::parse(bytes).ok_or(Counter::DropArpMalformed)?;
        let own = self.interface.ipv4.ok_or(Counter::DropNoAddress)?;
        if packet.sender_ip == own.address {
            // Our own packet, received again or on another path, is no conflict.
            if packet.sender_mac != self.interface.mac {
                self.on_address_claim();
            }
            return Err(Counter::DropArpNotForUs);
        }
        if !own.on_link(packet.sender_ip) || own.is_broadcast(packet.sender_ip) {
            return Err(Counter::DropArpNotForUs);
        }
        // A packet between other hosts only updates an existing entry (the merge flag of RFC 826).
        let for_us = packet.target_ip == own.address;
        let make = if for_us { MakeEntry::Always } else { MakeEntry::IfPresent };
        let answers = for_us && packet.operation == ArpOperation::REPLY;
        let evidence = if answers { Evidence::Confirmed } else { Evidence::Claimed };
        self.learn_neighbour((packet.sender_ip.into(), packet.sender_mac), evidence, make);
        if !for_us {
            return Err(Counter::DropArpNotForUs);
        }
        if packet.operation == ArpOperation::REQUEST {
            let reply = ArpPacket {
                operation: ArpOperation::REPLY,
                sender_mac: self.interface.mac,
                sender_ip: own.address,
                target_mac: packet.sender_mac,
                target_ip: packet.sender_ip,
            };
            self.interface.send_arp(reply, packet.sender_mac, &mut self.counters);
        }
        Ok(())
    }

    /// Handles a conflict of our IPv4 address (RFC 5227 2.4). A DHCP address that is new, or whose conflict recurs
    /// within the interval, is declined. Otherwise the address is announced again, once per interval.
    fn on_address_claim(&mut self) {
        self.counters.bump(Counter::AddressConflicts);
        let fresh = self.now < self.address_since + FRESH_ADDRESS;
        let again = self.defended.is_some_and(|at| self.now < at + DEFEND_INTERVAL);
        match &mut self.dhcp {
            Some(client) if fresh || again => {
                let change = client.decline(self.now);
                self.apply(change);
            }
            _ if again => {}
            _ => {
                self.defended = Some(self.now);
                self.interface.announce(&mut self.counters);
            }
        }
    }

    pub(super) fn receive_ndp(
        &mut self,
        message: NdpMessage,
        source: Ipv6Addr,
        destination: Ipv6Addr,
    ) -> Result<(), Counter> {
        match message {
            NdpMessage::Solicitation { target, sender } => {
                self.receive_solicitation(target, sender, source, destination)
            }
            NdpMessage::Advertisement { target, mac, flags } => {
                if source.is_unspecified() || (flags.is_solicited() && destination.is_multicast()) {
                    return Err(Counter::DropNdpInvalid);
                }
                if self.conflict(target) == Outcome::Settled {
                    return Ok(());
                }
                if self.interface.ipv6.has(target) {
                    // Another host claims our address: there is no remedy (RFC 4862 5.4.4).
                    return Err(Counter::DropNdpInvalid);
                }
                let evidence = if flags.is_solicited() { Evidence::Confirmed } else { Evidence::Claimed };
                let strength = if flags.overrides() { Strength::Replaces } else { Strength::Adds };
                let advert = Advert { mac, evidence, strength };
                let ip = IpAddr::V6(target);
                // The solicitation may come from another instance, of which this one has no record.
                let unasked = if flags.is_solicited() && self.speaks_for_others() {
                    MakeEntry::Always
                } else {
                    MakeEntry::IfPresent
                };
                let neighbours = &mut self.interface.neighbours;
                let learned = neighbours.advertised(self.now, ip, advert, unasked, &mut self.counters);
                if let Some(mac) = mac.or_else(|| self.interface.neighbours.mac_of(ip)) {
                    self.report_neighbour(learned, (ip, mac), evidence);
                }
                if !flags.is_router()
                    && let Some(autoconf) = &mut self.autoconf
                {
                    autoconf.on_no_router(target);
                }
                Ok(())
            }
            NdpMessage::Router(advert) => self.receive_router(&advert, source),
        }
    }

    fn receive_solicitation(
        &mut self,
        target: Ipv6Addr,
        sender: Option<MacAddr>,
        source: Ipv6Addr,
        destination: Ipv6Addr,
    ) -> Result<(), Counter> {
        let checks = source.is_unspecified();
        // A host that checks an address sends to the address's group and omits its own link-layer address (RFC 4861
        // 7.1.1).
        if checks && (sender.is_some() || destination != solicited_node(target)) {
            return Err(Counter::DropNdpInvalid);
        }
        if checks && self.conflict(target) == Outcome::Settled {
            return Ok(());
        }
        if !self.interface.ipv6.has(target) {
            return Err(Counter::DropIpv6Address);
        }
        let own = self.interface.mac;
        let (to, mac, answers) = if checks {
            (ALL_NODES, Some(group_mac(ALL_NODES)), Answers::AllNodes)
        } else {
            if let Some(mac) = sender {
                self.learn_neighbour((source.into(), mac), Evidence::Claimed, MakeEntry::Always);
            }
            (source, sender.or_else(|| self.interface.neighbours.mac_of(source.into())), Answers::Solicitor)
        };
        // Without the sender's link-layer address, neither announced nor known, the answer cannot be sent.
        let mac = mac.ok_or(Counter::DropNdpInvalid)?;
        let bytes = neighbour_advertisement(target, own, answers);
        let kind = LinkMessageKind::Neighbours;
        let message = LinkMessage { source: target, destination: to, mac, kind, bytes };
        self.interface.send_link_message(message, &mut self.counters);
        Ok(())
    }

    fn receive_router(&mut self, advert: &RouterAdvert, from: Ipv6Addr) -> Result<(), Counter> {
        if !from.is_unicast_link_local() {
            return Err(Counter::DropNdpInvalid);
        }
        let Some(autoconf) = &mut self.autoconf else { return Err(Counter::DropIcmpIgnored) };
        autoconf.on_router(self.now, from, advert, &mut self.counters);
        if autoconf.asks_routers() {
            self.dhcp6.offer(self.now, advert.offered);
        }
        let reachable = match advert.reachable_ms {
            0 => REACHABLE_V6,
            ms => Duration::from_millis(ms.min(LONGEST_REACHABLE_MS).into()),
        };
        self.interface.neighbours.set_reachable_v6(reachable);
        if let Some(mac) = advert.mac {
            self.learn_neighbour((from.into(), mac), Evidence::Claimed, MakeEntry::Always);
        }
        self.poll_autoconf();
        Ok(())
    }

    /// Processes evidence that an address is used by another host.
    fn conflict(&mut self, ip: Ipv6Addr) -> Outcome {
        let Some(autoconf) = &mut self.autoconf else { return Outcome::NotOurs };
        match autoconf.on_conflict(ip) {
            Conflict::None => return Outcome::NotOurs,
            Conflict::Mended => {}
            Conflict::OfLease => self.dhcp6.decline(self.now, ip),
        }
        self.counters.bump(Counter::AddressConflicts);
        self.poll_autoconf();
        Outcome::Settled
    }

    /// Sends the messages of IPv6 autoconfiguration, and applies its settings.
    pub(super) fn poll_autoconf(&mut self) {
        let due = self.autoconf.as_ref().and_then(Autoconf::deadline);
        if due.is_none_or(|at| at > self.now) {
            return;
        }
        while let Some(outgoing) = self.autoconf.as_mut().and_then(|autoconf| autoconf.poll(self.now)) {
            self.send_autoconf(outgoing);
        }
        if let Some(autoconf) = &self.autoconf {
            let settings = autoconf.settings(self.now);
            self.change_ipv6(settings);
        }
    }

    fn send_autoconf(&mut self, outgoing: Outgoing) {
        let none = Ipv6Addr::UNSPECIFIED;
        let (source, destination, kind, bytes) = match outgoing {
            Outgoing::Probe { target } => {
                let bytes = neighbour_solicitation(target, None);
                (none, solicited_node(target), LinkMessageKind::Neighbours, bytes)
            }
            Outgoing::FindRouters { source } => {
                let bytes = router_solicitation(source.map(|_| self.interface.mac));
                (source.unwrap_or(none), ALL_ROUTERS, LinkMessageKind::Neighbours, bytes)
            }
            Outgoing::Report { source, report } => {
                (source.unwrap_or(none), ALL_MLD_ROUTERS, LinkMessageKind::Listeners, report)
            }
        };
        let message = LinkMessage { source, destination, mac: group_mac(destination), kind, bytes };
        self.interface.send_link_message(message, &mut self.counters);
    }

    /// Sends the DHCPv6 client's message, once there is a link-local source address.
    pub(super) fn poll_dhcp6(&mut self) {
        if self.dhcp6.deadline().is_none_or(|at| at > self.now) {
            return;
        }
        let Some(own) = self.autoconf.as_ref().and_then(Autoconf::link_local) else { return };
        let (message, change) = self.dhcp6.poll(self.now);
        self.apply_dhcp6(change);
        let Some(message) = message else { return };
        let source = SocketAddr::new(own.into(), DHCP6_CLIENT_PORT);
        let destination = SocketAddr::new(DHCP6_SERVERS.into(), DHCP6_SERVER_PORT);
        let payload = Chain::from(IoBuf::from(message));
        if let Some(packet) = udp::packet(&mut self.interface, source, destination, payload) {
            self.interface.send(self.now, packet, &mut self.counters);
        }
    }

    pub(super) fn receive_dhcp6(&mut self, message: &[u8]) -> Result<(), Counter> {
        let change = self.dhcp6.receive(self.now, message).map_err(|_| Counter::DropDhcp)?;
        self.apply_dhcp6(change);
        Ok(())
    }

    fn apply_dhcp6(&mut self, change: Option<Dhcp6Change>) {
        let Some(autoconf) = &mut self.autoconf else { return };
        match change {
            None => return,
            Some(Dhcp6Change::Gained { ip, preferred, valid, dns }) => {
                autoconf.add_lease(self.now, ip, (preferred, valid), &mut self.counters);
                autoconf.set_leased_dns(dns);
            }
            Some(Dhcp6Change::Lost(ip)) => autoconf.remove_lease(ip),
            Some(Dhcp6Change::Settings(dns)) => autoconf.set_leased_dns(dns),
        }
        self.poll_autoconf();
    }

    /// Returns the IPv6 settings of the interface.
    pub fn ipv6(&self) -> Ipv6Settings {
        self.interface.ipv6
    }

    /// Sets the IPv6 settings of the interface: on instances other than 0, those of instance 0 after
    /// [`Event::Ipv6Changed`]. Ends autoconfiguration and DHCPv6. Connections of other addresses fail.
    pub fn set_ipv6(&mut self, now: Instant, settings: Ipv6Settings) {
        self.at(now);
        self.setup_due = Instant::ZERO;
        self.autoconf = None;
        self.dhcp6 = Dhcp6Client::new(self.interface.mac, 0);
        self.change_ipv6(settings);
    }

    fn change_ipv6(&mut self, settings: Ipv6Settings) {
        let before = self.interface.ipv6;
        // Each instance selects its next router by its own experience.
        let same_routers = settings.routers.iter().all(|router| before.routers.contains(router))
            && before.routers.iter().all(|router| settings.routers.contains(router));
        let routers = if same_routers { before.routers } else { settings.routers };
        let settings = Ipv6Settings { routers, ..settings };
        if before == settings {
            return;
        }
        let waiting = self.interface.set_ipv6(settings, &mut self.counters);
        self.events.ipv6_changed();
        let mut parts = stack_parts!(self);
        if before.addresses.iter().flatten().any(|own| !settings.has(own.ip)) {
            self.tcp.on_address_change(&mut parts);
        }
        self.tcp.on_search_ended(&waiting, SearchOutcome::Found, &mut parts);
    }

    /// Records a confirmed neighbour: from another instance ([`Event::Neighbour`]), or known for certain.
    pub fn learn(&mut self, now: Instant, ip: impl Into<IpAddr>, mac: MacAddr) {
        self.at(now);
        self.learn_neighbour((ip.into(), mac), Evidence::Confirmed, MakeEntry::Always);
    }

    /// Records an unconfirmed neighbour of another instance ([`Event::Neighbour`]).
    pub fn learn_claim(&mut self, now: Instant, ip: impl Into<IpAddr>, mac: MacAddr) {
        self.at(now);
        self.learn_neighbour((ip.into(), mac), Evidence::Claimed, MakeEntry::Always);
    }

    /// Returns the hardware address of a neighbour, if it is known.
    pub fn neighbour(&self, ip: IpAddr) -> Option<MacAddr> {
        self.interface.neighbours.mac_of(ip)
    }

    /// Returns a number that changes whenever a known neighbour's hardware address changes.
    pub fn neighbour_epoch(&self) -> u32 {
        self.interface.neighbours.epoch
    }

    /// Begins a search for a neighbour's hardware address.
    pub fn seek_neighbour(&mut self, now: Instant, ip: IpAddr) {
        self.at(now);
        self.interface.path(self.now, ip, &mut self.counters);
    }

    /// Sets the hardware addresses to which frames go over a link in memory. Frames to them have no checksums and may be
    /// long, whatever the device supports.
    pub fn set_linked(&mut self, linked: Vec<MacAddr>) {
        self.interface.set_linked(linked);
    }

    fn learn_neighbour(&mut self, pair: (IpAddr, MacAddr), evidence: Evidence, make: MakeEntry) {
        let neighbours = &mut self.interface.neighbours;
        let learned = neighbours.learn(self.now, pair, evidence, make, &mut self.counters);
        self.report_neighbour(learned, pair, evidence);
    }

    /// Returns whether this instance reports neighbours to others.
    fn speaks_for_others(&self) -> bool {
        self.core.is_first() && !self.core.is_alone()
    }

    /// Continues the work that waited for a neighbour, and reports the neighbour to other instances.
    fn report_neighbour(&mut self, learned: LearnOutcome, (ip, mac): (IpAddr, MacAddr), evidence: Evidence) {
        let LearnOutcome::Fresh(Waiting { packets, connections }) = learned else { return };
        self.interface.on_heard(ip);
        let waiting = Waiting { packets, connections: alloc::vec::Vec::new() };
        self.interface.send_waiting(waiting, mac, &mut self.counters);
        self.tcp.on_search_ended(&connections, SearchOutcome::Found, &mut stack_parts!(self));
        if self.speaks_for_others() {
            self.events.notice(Event::Neighbour { ip, mac, evidence });
        }
    }

    /// Drops incomplete packets whose time has expired, and notifies their senders.
    pub(super) fn on_fragment_timer(&mut self) {
        for first in self.fragments.on_timer(self.now, &mut self.counters) {
            self.send_icmp6_error(first, Addressee::Own, Icmp6ErrorKind::ReassemblyTime);
        }
    }

    /// Repeats solicitations, and gives up neighbours that do not answer.
    pub(super) fn on_neighbour_timer(&mut self) {
        let (asks, lost) = self.interface.neighbours.on_timer(self.now);
        asks.into_iter().for_each(|ask| self.interface.ask(ask, &mut self.counters));
        for (ip, Waiting { packets, connections }) in lost {
            // If another router replaces a silent one, the waiting packets are sent to it, and waiting connections look
            // up their path again.
            let outcome = match self.interface.on_silent(ip) {
                SilentNeighbour::NextRouter => {
                    let Self { interface, counters, now, .. } = self;
                    packets.into_iter().for_each(|packet| interface.send(*now, packet, counters));
                    SearchOutcome::Found
                }
                SilentNeighbour::NoRoute => {
                    self.counters.add(Counter::DropNeighbourSilent, packets.len() as u64);
                    SearchOutcome::NoAnswer
                }
            };
            self.tcp.on_search_ended(&connections, outcome, &mut stack_parts!(self));
        }
    }
}

/// Whether a message reported a conflict of an address under check here.
#[derive(PartialEq)]
enum Outcome {
    Settled,
    NotOurs,
}
