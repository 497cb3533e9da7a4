//! The player of scripts.

use super::{Action, Call, Family, IcmpError, Script, Segment, Step, TcpOption, settings};
use crate::{Peer, host_config6, host_ip, host_ip6, host_mac};
use etherparse::{Icmpv4Type, PacketBuilder, icmpv4::DestUnreachableHeader};
use isola_iobuf::{Chain, IoBuf};
use isola_net_stack::{Config, ConnId, Counter, Duration, Event, Instant, KeepAlive, ListenerId, TxChecksum};
use std::collections::VecDeque;

/// The accepted deviation from a segment's time.
const TOLERANCE: Duration = Duration::from_millis(1);
/// The script's port of connection `a`.
const FIRST_PORT: u16 = 4000;
/// The stack's port for incoming connections.
const SERVER_PORT: u16 = 80;
/// The script's first sequence number.
const FIRST_NUMBER: u32 = 1_000_000;

/// Returns the byte at a relative sequence number, the same in every stream.
fn byte_at(number: u32) -> u8 {
    (number % 251) as u8
}

fn stream(from: u32, len: u32) -> Vec<u8> {
    (0..len).map(|at| byte_at(from.wrapping_add(at))).collect()
}

/// One connection, from the script's side.
struct Connection {
    /// The script's port, and the stack's.
    port: u16,
    stack_port: u16,
    conn: Option<ConnId>,
    /// The stack's first sequence number and timestamp, once seen.
    first: Option<u32>,
    first_timestamp: Option<u32>,
    /// Bytes that the application has written and read.
    written: u32,
    read: u32,
    events: VecDeque<String>,
}

struct Play {
    peer: Peer,
    family: Family,
    /// The time of the last step.
    clock: Instant,
    connections: Vec<Connection>,
    listener: Option<ListenerId>,
    /// Segments from the stack that no step has expected yet.
    sent: VecDeque<(Instant, usize, Segment)>,
}

impl Script {
    /// Plays the script against a new stack, over IP of this family, on a device with or without checksum offload.
    ///
    /// # Errors
    /// A message with the file and line of the first failed step, the expected and the actual result.
    pub fn play(&self, family: Family, tx_checksum: TxChecksum) -> Result<(), String> {
        let mut config = Config { tx_checksum, ..host_config6(1) };
        for (line, name, value) in &self.settings {
            settings::set(&mut config, name, value)
                .map_err(|why| format!("{}:{line}: set {name} {value}\n  {why}", self.file))?;
        }
        let mut peer = Peer::new(config);
        // Discards the interface's announcements and autoconfiguration.
        peer.pass(Duration::from_secs(60));
        peer.data_frames();
        peer.stack.learn(peer.now, host_ip(2), host_mac(2));
        peer.stack.learn(peer.now, host_ip6(2), host_mac(2));
        let clock = peer.now;
        let (connections, sent) = (Vec::new(), VecDeque::new());
        let mut play = Play { peer, family, clock, connections, listener: None, sent };
        for step in &self.steps {
            play.step(step).map_err(|why| format!("{}:{}: {}\n{why}", self.file, step.line, step.text))?;
        }
        play.collect()
            .and_then(|()| play.nothing_else())
            .map_err(|why| format!("{}: at its end\n{why}", self.file))
    }
}

impl Play {
    fn step(&mut self, step: &Step) -> Result<(), String> {
        let at = usize::from(step.connection);
        while self.connections.len() <= at {
            self.connections.push(Connection::new(self.connections.len()));
        }
        let at_once = step.after == Duration::ZERO && matches!(step.action, Action::Call(_));
        // Calls without a delay share one transmission, so the stack's frames are not collected between them.
        match at_once {
            true => self.collect_events(),
            false => self.collect()?,
        }
        self.clock += step.after;
        if let Action::Expect(segment) = &step.action {
            return self.expect(at, segment);
        }
        self.pass_to(self.clock)?;
        self.nothing_else()?;
        match &step.action {
            Action::Send(segment) => self.send(at, segment),
            Action::Icmp(error) => self.icmp(at, *error),
            Action::Quiet(span) => {
                self.clock += *span;
                self.pass_to(self.clock)?;
                self.nothing_else()?;
            }
            Action::Event(name) => self.event(at, name)?,
            Action::Assert(name, value) => self.assert(at, name, value)?,
            Action::Call(call) => self.call(at, *call)?,
            Action::Expect(_) => {}
        }
        Ok(())
    }

    /// Collects the frames that the stack sends now, and its events.
    fn collect(&mut self) -> Result<(), String> {
        for frame in self.peer.data_frames() {
            let Some((source, destination, segment, payload)) = Segment::read(&frame) else { continue };
            let at = usize::from(destination.wrapping_sub(FIRST_PORT));
            while self.connections.len() <= at && at < 26 {
                self.connections.push(Connection::new(self.connections.len()));
            }
            let Some(connection) = self.connections.get_mut(at) else { continue };
            let segment = connection.relative(self.family, source, segment, &payload)?;
            self.sent.push_back((self.peer.now, at, segment));
        }
        self.collect_events();
        Ok(())
    }

    /// Collects the stack's events.
    fn collect_events(&mut self) {
        for event in self.peer.events() {
            let (conn, name) = match event {
                Event::Accepted { conn, .. } => (conn, "accepted".to_owned()),
                Event::Connected(conn) => (conn, "connected".into()),
                Event::Readable(conn) => (conn, "readable".into()),
                Event::SendSpace(conn) => (conn, "send_space".into()),
                Event::PeerClosed(conn) => (conn, "peer_closed".into()),
                Event::Closed(conn) => (conn, "closed".into()),
                Event::Failed(conn, reason) => (conn, format!("failed {reason:?}")),
                _ => continue,
            };
            if let Event::Accepted { conn, .. } = event
                && let Some(remote) = self.peer.stack.remote_addr(conn)
                && let Some(connection) = self.connections.iter_mut().find(|c| c.port == remote.port())
            {
                connection.conn = Some(conn);
            }
            if let Some(connection) = self.connections.iter_mut().find(|c| c.conn == Some(conn)) {
                connection.events.push_back(name);
            }
        }
    }

    /// Runs the next timer that is due until `end`. Returns `false` if there is none.
    fn next_timer(&mut self, end: Instant) -> Result<bool, String> {
        let Some(at) = self.peer.stack.next_deadline().filter(|&at| at <= end) else { return Ok(false) };
        self.peer.now = self.peer.now.max(at);
        self.peer.stack.on_timer(self.peer.now);
        let next = self.peer.stack.next_deadline();
        if next.is_some_and(|next| next <= self.peer.now) {
            return Err("  a timer stays due".into());
        }
        self.collect()?;
        Ok(true)
    }

    fn pass_to(&mut self, end: Instant) -> Result<(), String> {
        while self.next_timer(end)? {}
        self.peer.now = self.peer.now.max(end);
        Ok(())
    }

    fn nothing_else(&self) -> Result<(), String> {
        match self.sent.front() {
            Some((at, connection, segment)) => Err(format!(
                "  expected: nothing before this\n       got: {} {segment}",
                self.describe(*at, *connection)
            )),
            None => Ok(()),
        }
    }

    fn expect(&mut self, at: usize, wanted: &Segment) -> Result<(), String> {
        while self.sent.is_empty() && self.next_timer(self.clock + TOLERANCE)? {}
        let expected = format!("  expected: {} {wanted}\n", self.describe(self.clock, at));
        let Some((sent_at, connection, segment)) = self.sent.pop_front() else {
            let next = self.peer.stack.next_deadline().map(|next| self.describe(next, at));
            let next = next.map_or("no timer runs".into(), |next| format!("the next timer is at {next}"));
            return Err(format!("{expected}       got: nothing; {next}"));
        };
        let on_time = sent_at + TOLERANCE >= self.clock && self.clock + TOLERANCE >= sent_at;
        if connection != at || !on_time || !wanted.matches(&segment) {
            return Err(format!("{expected}       got: {} {segment}", self.describe(sent_at, connection)));
        }
        Ok(())
    }

    /// Formats a connection and a time, counted from the start of the script.
    fn describe(&self, at: Instant, connection: usize) -> String {
        let since = at.since(Instant::ZERO + Duration::from_secs(61));
        let letter = char::from(b'a' + connection as u8);
        format!("{letter} at {:.4} s", since.as_nanos() as f64 / 1e9)
    }

    fn send(&mut self, at: usize, segment: &Segment) {
        let Some(connection) = self.connections.get(at) else { return };
        let payload = match segment.flags.contains('S') {
            true => stream(1, segment.len),
            false => stream(segment.start, segment.len),
        };
        let ports = (connection.port, connection.stack_port);
        let frame =
            connection.absolute(segment).frame((self.family.host(2), self.family.host(1)), ports, &payload);
        self.peer.send_frame(frame);
    }

    fn icmp(&mut self, at: usize, error: IcmpError) {
        let Some(connection) = self.connections.get(at) else { return };
        let (start, header) = match error {
            IcmpError::TooBig { mtu, start } => {
                (start, DestUnreachableHeader::FragmentationNeeded { next_hop_mtu: mtu })
            }
            IcmpError::Unreachable { start } => (start, DestUnreachableHeader::Host),
        };
        let quoted =
            Segment { start: start.wrapping_add(connection.first.unwrap_or(0)), ..Segment::default() };
        let ports = (connection.stack_port, connection.port);
        let quoted = quoted.frame((host_ip(1).into(), host_ip(2).into()), ports, &[]);
        let mut frame = Vec::new();
        PacketBuilder::ethernet2(crate::host_mac(254).0, crate::host_mac(1).0)
            .ipv4(host_ip(254).octets(), host_ip(1).octets(), 64)
            .icmpv4(Icmpv4Type::DestinationUnreachable(header))
            .write(&mut frame, &quoted[14..14 + 28])
            .expect("an error that fits");
        self.peer.send_frame(frame);
    }

    fn event(&mut self, at: usize, name: &str) -> Result<(), String> {
        let events = &mut self.connections[at].events;
        let got: Vec<String> = events.iter().cloned().collect();
        let found = match name {
            "none" => events.is_empty().then_some(0),
            name => events.iter().position(|event| event == name).map(|at| at + 1),
        };
        let Some(count) = found else {
            return Err(format!("  expected: {name}\n       got: {got:?}"));
        };
        events.drain(..count);
        Ok(())
    }

    fn assert(&mut self, at: usize, name: &str, value: &str) -> Result<(), String> {
        let stats = self.connections[at].conn.and_then(|conn| self.peer.stack.connection_stats(conn));
        let occupancy = self.peer.stack.occupancy();
        let seconds = |span: Duration| format!("{}", span.as_nanos() as f64 / 1e9);
        let counter = |name: &str| Counter::ALL.iter().find(|counter| counter.name() == name).copied();
        let got = match (name, stats) {
            ("connections", _) => occupancy.connections.to_string(),
            ("half_open", _) => occupancy.half_open.to_string(),
            ("time_wait", _) => occupancy.time_wait.to_string(),
            ("timer", _) => {
                let next = self.peer.stack.next_deadline();
                next.map_or("none".into(), |next| seconds(next.since(self.peer.now)))
            }
            ("cwnd", Some(stats)) => stats.congestion_window.to_string(),
            ("rto", Some(stats)) => seconds(stats.rto),
            ("srtt", Some(stats)) => stats.smoothed_rtt.map_or("none".into(), seconds),
            ("mss", Some(stats)) => stats.mss.to_string(),
            ("retransmits", Some(stats)) => stats.retransmits.to_string(),
            ("peer_window", Some(stats)) => stats.peer_window.to_string(),
            ("unread", Some(stats)) => stats.unread.to_string(),
            ("unacked", Some(stats)) => stats.unacked.to_string(),
            (name, _) => match counter(name) {
                Some(counter) => self.peer.stack.counters().get(counter).to_string(),
                None => return Err(format!("  {name} is no figure, or the connection has ended")),
            },
        };
        if got == value { Ok(()) } else { Err(format!("  expected: {value}\n       got: {got}")) }
    }

    fn call(&mut self, at: usize, call: Call) -> Result<(), String> {
        let now = self.peer.now;
        let connection = &mut self.connections[at];
        let stack = &mut self.peer.stack;
        let conn = connection.conn.ok_or("  there is no connection");
        match call {
            Call::Listen(backlog) => {
                self.listener = Some(stack.listen(SERVER_PORT, backlog).map_err(|why| format!("  {why}"))?);
            }
            Call::Unlisten => stack.unlisten(now, self.listener.take().ok_or("  there is no listener")?),
            Call::Connect => {
                let remote = (self.family.host(2), connection.port).into();
                let conn = stack.connect(now, remote).map_err(|why| format!("  {why}"))?;
                connection.conn = Some(conn);
                connection.stack_port = stack.local_addr(conn).map_or(0, |addr| addr.port());
            }
            Call::Accept => {
                conn?;
                return self.event(at, "accepted");
            }
            Call::Write(len) => {
                let data = stream(1 + connection.written, len as u32);
                let mut chain = Chain::from(IoBuf::from(data));
                stack.send(conn?, &mut chain).map_err(|why| format!("  {why}"))?;
                connection.written += len as u32;
            }
            Call::Read(len) => {
                let mut bytes = Vec::new();
                while let Some(piece) = stack.read(conn?) {
                    bytes.extend_from_slice(&piece);
                }
                if bytes != stream(1 + connection.read, len as u32) {
                    let first = bytes.iter().zip(1 + connection.read..).position(|(&b, n)| b != byte_at(n));
                    let got = bytes.len();
                    return Err(format!(
                        "  expected: {len} bytes\n       got: {got}, the first wrong one: {first:?}"
                    ));
                }
                connection.read += len as u32;
            }
            Call::ShutDown => stack.shutdown(conn?),
            Call::Close => stack.close(now, conn?),
            Call::Abort => stack.abort(now, conn?),
            Call::SetWindow(bytes) => stack.set_window(conn?, bytes),
            Call::SetSendLimit(bytes) => stack.set_send_limit(conn?, bytes),
            Call::KeepAlive(idle, interval, probes) => {
                stack.set_keep_alive(conn?, Some(KeepAlive { idle, interval, probes }));
            }
        }
        Ok(())
    }
}

impl Connection {
    fn new(index: usize) -> Self {
        Self {
            port: FIRST_PORT + index as u16,
            stack_port: SERVER_PORT,
            conn: None,
            first: None,
            first_timestamp: None,
            written: 0,
            read: 0,
            events: VecDeque::new(),
        }
    }

    /// Returns the script's segment with absolute numbers, as it is sent to the stack.
    fn absolute(&self, segment: &Segment) -> Segment {
        let theirs = self.first.unwrap_or(0);
        let options = segment.options.iter().flatten().map(|option| match option {
            TcpOption::Sack(ranges) => {
                let ranges =
                    ranges.iter().map(|(from, to)| (from.wrapping_add(theirs), to.wrapping_add(theirs)));
                TcpOption::Sack(ranges.collect())
            }
            TcpOption::Timestamps(value, echo) => {
                let base = self.first_timestamp.unwrap_or(0);
                TcpOption::Timestamps(*value, echo.map(|echo| echo.wrapping_add(base)))
            }
            other => other.clone(),
        });
        Segment {
            start: segment.start.wrapping_add(FIRST_NUMBER),
            ack: segment.ack.map(|ack| ack.wrapping_add(theirs)),
            options: Some(options.collect()),
            ..segment.clone()
        }
    }

    /// Returns the stack's segment with relative numbers, as in scripts. Checks that its payload equals the
    /// application's data.
    fn relative(
        &mut self,
        family: Family,
        stack_port: u16,
        segment: Segment,
        payload: &[u8],
    ) -> Result<Segment, String> {
        if segment.flags.contains('S') {
            self.first = Some(segment.start);
            self.stack_port = stack_port;
        }
        let start = segment.start.wrapping_sub(self.first.unwrap_or(0));
        if payload != stream(start, segment.len) {
            return Err(format!("  the {} bytes sent at {start} are not those written", segment.len));
        }
        let options: Vec<TcpOption> = segment.options.into_iter().flatten().collect();
        let options = options.into_iter().map(|option| match option {
            TcpOption::Sack(ranges) => {
                let near = |number: u32| number.wrapping_sub(FIRST_NUMBER);
                TcpOption::Sack(ranges.into_iter().map(|(from, to)| (near(from), near(to))).collect())
            }
            TcpOption::Timestamps(Some(value), echo) => {
                let base = *self.first_timestamp.get_or_insert(value);
                TcpOption::Timestamps(Some(value.wrapping_sub(base)), echo)
            }
            // Scripts are written for IPv4, whose header is 20 bytes shorter.
            TcpOption::Mss(mss) if family == Family::V6 => TcpOption::Mss(mss + 20),
            other => other,
        });
        Ok(Segment {
            start,
            ack: segment.ack.map(|ack| ack.wrapping_sub(FIRST_NUMBER)),
            options: Some(options.collect()),
            ..segment
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Family, Script};
    use isola_net_stack::TxChecksum;

    const OPEN: &str = "listen\n< S 0:0(0)\n> S. 0:0(0) ack 1\n+0.1 < . 1:1(0) ack 1\naccept\n";

    fn why(steps: &str) -> String {
        let script = Script::parse("x.script", &format!("{OPEN}{steps}")).expect("a script");
        script.play(Family::V4, TxChecksum::Software).expect_err("a failure")
    }

    #[test]
    fn a_script_that_matches_passes() {
        let script = Script::parse("x.script", OPEN).expect("a script");
        assert_eq!(script.play(Family::V4, TxChecksum::Software), Ok(()));
    }

    #[test]
    fn an_unexpected_segment_is_shown_beside_the_expected_one() {
        let why = why("write 5\n> P. 1:7(6) ack 1\n");
        assert!(why.starts_with("x.script:7: > P. 1:7(6) ack 1\n"), "{why}");
        assert!(why.contains("expected: a at 0.1000 s .P 1:7(6) ack 1\n"), "{why}");
        assert!(why.contains("got: a at 0.1000 s .P 1:6(5) ack 1 win 65535 <>"), "{why}");
    }

    #[test]
    fn early_late_and_missing_segments_are_failures() {
        assert!(why("write 5\n+0.1 > P. 1:6(5) ack 1\n").contains("got: a at 0.1000 s"));
        assert!(
            why("write 5\n> P. 1:6(5) ack 1\n> P. 1:6(5) ack 1\n").contains("got: nothing; the next timer")
        );
        assert!(why("> . 1:1(0) ack 1\n").contains("got: nothing; no timer runs"));
    }

    #[test]
    fn segments_without_an_expectation_are_failures() {
        assert!(why("write 5\n").starts_with("x.script: at its end\n  expected: nothing"));
        assert!(why("write 5\n+0.1 < . 1:1(0) ack 6\n").starts_with("x.script:7: "));
        assert!(why("write 5\nquiet 1\n").starts_with("x.script:7: quiet 1\n"));
    }

    #[test]
    fn bytes_events_and_statistics_are_compared() {
        assert!(why("read 1\n").contains("expected: 1 bytes\n       got: 0"));
        assert!(why("event closed\n").contains("expected: closed\n       got: []"));
        assert!(why("assert mss 7\n").contains("expected: 7\n       got: 536"));
        assert!(why("assert mood 7\n").contains("mood is no figure"));
        assert!(why("b write 1\n").contains("there is no connection"));
    }
}
