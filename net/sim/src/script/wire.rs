//! Segments in scripts and on the wire.

use crate::{host_mac, script::parse::Words};
use etherparse::{
    IpEcn, IpHeaders, IpNumber, Ipv4Header, Ipv6Header, NetSlice, PacketBuilder, SlicedPacket, TransportSlice,
};
use std::fmt;
use std::net::IpAddr;

/// A segment. Its numbers are relative or absolute, as the caller decides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Segment {
    /// Sorted letters of `FSRPEW.`.
    pub flags: String,
    pub start: u32,
    pub len: u32,
    pub ack: Option<u32>,
    pub window: Option<u16>,
    pub options: Option<Vec<TcpOption>>,
    /// The ECN bits of the IP header.
    pub ecn: Option<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TcpOption {
    Mss(u16),
    Scale(u8),
    SackOk,
    /// Value and echo; `None` matches any.
    Timestamps(Option<u32>, Option<u32>),
    Sack(Vec<(u32, u32)>),
    Nop,
    End,
    Raw(Vec<u8>),
}

/// The names of the values of the IP header's ECN field.
const ECN: [&str; 4] = ["", "[ect1]", "[ect0]", "[ce]"];

impl Segment {
    /// Parses `FLAGS START:END(LEN) [ack N] [win N] [<options>] [ecn]`.
    pub fn parse(words: &mut Words<'_>) -> Result<Self, String> {
        let flags = sorted(words.word("flags")?)?;
        let (start, rest) = words.word("START:END(LENGTH)")?.split_once(':').ok_or("no : in the numbers")?;
        let (end, len) = rest.split_once('(').ok_or("no ( in the numbers")?;
        let number = |text: &str| text.parse::<u32>().map_err(|_| format!("{text} is no number"));
        let (start, end, len) = (number(start)?, number(end)?, number(len.trim_end_matches(')'))?);
        if start.wrapping_add(len) != end {
            return Err(format!("{start} and {len} bytes do not end at {end}"));
        }
        let mut segment = Self { flags, start, len, ..Self::default() };
        while let Some(word) = words.peek() {
            match word {
                "ack" => segment.ack = Some(words.number_after("ack")?),
                "win" => segment.window = Some(words.number_after("win")?),
                word if word.starts_with('<') => segment.options = Some(TcpOption::parse_all(words)?),
                word if ECN.contains(&word) => {
                    words.word("ecn")?;
                    segment.ecn = ECN.iter().position(|&name| name == word).map(|bits| bits as u8);
                }
                other => return Err(format!("{other} is nothing that a segment has")),
            }
        }
        if segment.ack.is_some() != segment.flags.contains('.') {
            return Err("the flag . and ack go together".into());
        }
        Ok(segment)
    }

    /// Returns a frame between `ends` (source, destination) with this segment, its numbers unchanged, and `payload`.
    pub fn frame(&self, ends: (IpAddr, IpAddr), ports: (u16, u16), payload: &[u8]) -> Vec<u8> {
        let mac = |ip: IpAddr| {
            let number = match ip {
                IpAddr::V4(ip) => ip.octets()[3],
                IpAddr::V6(ip) => ip.octets()[15],
            };
            host_mac(number).0
        };
        let link = PacketBuilder::ethernet2(mac(ends.0), mac(ends.1));
        let ecn = self.ecn.unwrap_or(0);
        let network = match ends {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let mut header = Ipv4Header::new(0, 64, IpNumber::TCP, source.octets(), destination.octets())
                    .expect("a short packet");
                header.ecn = IpEcn::try_new(ecn).expect("two bits");
                header.dont_fragment = true;
                link.ip(IpHeaders::Ipv4(header, Default::default()))
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let header = Ipv6Header {
                    traffic_class: ecn,
                    hop_limit: 64,
                    source: source.octets(),
                    destination: destination.octets(),
                    ..Default::default()
                };
                link.ip(IpHeaders::Ipv6(header, Default::default()))
            }
            _ => panic!("two addresses of one family"),
        };
        let mut builder = network.tcp(ports.0, ports.1, self.start, self.window.unwrap_or(60_000));
        for flag in self.flags.chars() {
            builder = match flag {
                'F' => builder.fin(),
                'S' => builder.syn(),
                'R' => builder.rst(),
                'P' => builder.psh(),
                'E' => builder.ece(),
                'W' => builder.cwr(),
                _ => builder.ack(self.ack.unwrap_or(0)),
            };
        }
        let mut options: Vec<u8> = self.options.iter().flatten().flat_map(TcpOption::bytes).collect();
        options.resize(options.len().next_multiple_of(4), 0);
        let builder = builder.options_raw(&options).expect("options that fit");
        let mut bytes = Vec::new();
        builder.write(&mut bytes, payload).expect("a segment that fits");
        bytes
    }

    /// Parses a frame into ports, segment and payload. `None` if it has no TCP segment.
    pub fn read(frame: &[u8]) -> Option<(u16, u16, Self, Vec<u8>)> {
        let packet = SlicedPacket::from_ethernet(frame).ok()?;
        let (Some(net), Some(TransportSlice::Tcp(tcp))) = (packet.net, packet.transport) else {
            return None;
        };
        let ecn = match net {
            NetSlice::Ipv4(ip) => ip.header().ecn().value(),
            NetSlice::Ipv6(ip) => ip.header().traffic_class() & 3,
            _ => return None,
        };
        let letters = [
            (tcp.ack(), '.'),
            (tcp.ece(), 'E'),
            (tcp.fin(), 'F'),
            (tcp.psh(), 'P'),
            (tcp.rst(), 'R'),
            (tcp.syn(), 'S'),
            (tcp.cwr(), 'W'),
        ];
        let segment = Self {
            flags: letters.into_iter().filter(|(set, _)| *set).map(|(_, letter)| letter).collect(),
            start: tcp.sequence_number(),
            len: tcp.payload().len() as u32,
            ack: tcp.ack().then(|| tcp.acknowledgment_number()),
            window: Some(tcp.window_size()),
            options: Some(TcpOption::read_all(tcp.options())),
            ecn: Some(ecn),
        };
        Some((tcp.source_port(), tcp.destination_port(), segment, tcp.payload().to_vec()))
    }

    /// Returns whether `got` matches this expected segment. Fields that the script omits are not compared.
    pub fn matches(&self, got: &Self) -> bool {
        (&self.flags, self.start, self.len, self.ack) == (&got.flags, got.start, got.len, got.ack)
            && self.window.is_none_or(|window| got.window == Some(window))
            && self.ecn.is_none_or(|ecn| got.ecn == Some(ecn))
            && self.options.as_ref().is_none_or(|wanted| options_match(wanted, got.options.as_deref()))
    }
}

/// Returns whether the options match; padding is not compared.
fn options_match(wanted: &[TcpOption], got: Option<&[TcpOption]>) -> bool {
    let bare = |options: &[TcpOption]| -> Vec<TcpOption> {
        options.iter().filter(|option| !matches!(option, TcpOption::Nop | TcpOption::End)).cloned().collect()
    };
    let (wanted, got) = (bare(wanted), bare(got.unwrap_or(&[])));
    wanted.len() == got.len() && wanted.iter().zip(&got).all(|(wanted, got)| wanted.matches(got))
}

/// Returns the letters of flags in the order in which they are compared.
fn sorted(word: &str) -> Result<String, String> {
    if word.is_empty() || word.chars().any(|letter| !"FSRPEW.-".contains(letter)) {
        return Err(format!("{word} is no combination of F S R P E W and . (or - for none)"));
    }
    let mut letters: Vec<char> = word.chars().filter(|&letter| letter != '-').collect();
    letters.sort_unstable();
    Ok(letters.into_iter().collect())
}

impl fmt::Display for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags = if self.flags.is_empty() { "-" } else { &self.flags };
        let end = self.start.wrapping_add(self.len);
        write!(f, "{flags} {}:{end}({})", self.start, self.len)?;
        if let Some(ack) = self.ack {
            write!(f, " ack {ack}")?;
        }
        if let Some(window) = self.window {
            write!(f, " win {window}")?;
        }
        if let Some(options) = &self.options {
            let options: Vec<String> = options.iter().map(ToString::to_string).collect();
            write!(f, " <{}>", options.join(","))?;
        }
        match self.ecn.and_then(|bits| ECN.get(usize::from(bits))) {
            Some(name) if !name.is_empty() => write!(f, " {name}"),
            _ => Ok(()),
        }
    }
}

impl TcpOption {
    /// Parses `<option,option>`.
    fn parse_all(words: &mut Words<'_>) -> Result<Vec<Self>, String> {
        let text = words.until('>')?;
        let text = text.trim_start_matches('<').trim_end_matches('>');
        text.split(',').filter(|option| !option.trim().is_empty()).map(Self::parse).collect()
    }

    fn parse(text: &str) -> Result<Self, String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let number = |text: &str| text.parse::<u32>().map_err(|_| format!("{text} is no number"));
        let any = |text: &str| if text == "*" { Ok(None) } else { number(text).map(Some) };
        Ok(match words[..] {
            ["mss", value] => Self::Mss(number(value)? as u16),
            ["wscale", value] => Self::Scale(number(value)? as u8),
            ["sackOK"] => Self::SackOk,
            ["TS", "val", value, "ecr", echo] => Self::Timestamps(any(value)?, any(echo)?),
            ["nop"] => Self::Nop,
            ["eol"] => Self::End,
            ["sack", ..] => {
                let range = |word: &&str| -> Result<(u32, u32), String> {
                    let (from, to) = word.split_once(':').ok_or(format!("{word} is no FROM:TO"))?;
                    Ok((number(from)?, number(to)?))
                };
                Self::Sack(words[1..].iter().map(range).collect::<Result<_, _>>()?)
            }
            ["raw", hex] => {
                let byte = |at: usize| u8::from_str_radix(hex.get(at..at + 2).unwrap_or(""), 16);
                let bytes: Result<Vec<u8>, _> = (0..hex.len()).step_by(2).map(byte).collect();
                Self::Raw(bytes.map_err(|_| format!("{hex} is not hexadecimal"))?)
            }
            _ => return Err(format!("{text} is no option")),
        })
    }

    fn bytes(&self) -> Vec<u8> {
        let pair = |kind: u8, len: u8, numbers: &[u32]| {
            let mut bytes = vec![kind, len];
            numbers.iter().for_each(|number| bytes.extend_from_slice(&number.to_be_bytes()));
            bytes
        };
        match self {
            Self::Mss(mss) => [&[2, 4], &mss.to_be_bytes()[..]].concat(),
            Self::Scale(scale) => vec![3, 3, *scale],
            Self::SackOk => vec![4, 2],
            Self::Timestamps(value, echo) => pair(8, 10, &[value.unwrap_or(0), echo.unwrap_or(0)]),
            Self::Sack(ranges) => {
                let numbers: Vec<u32> = ranges.iter().flat_map(|&(from, to)| [from, to]).collect();
                pair(5, 2 + 8 * ranges.len() as u8, &numbers)
            }
            Self::Nop => vec![1],
            Self::End => vec![0],
            Self::Raw(bytes) => bytes.clone(),
        }
    }

    /// Parses the options of a header. A malformed option and all that follows it become one `Raw`.
    fn read_all(mut bytes: &[u8]) -> Vec<Self> {
        let mut options = Vec::new();
        while let Some((&kind, rest)) = bytes.split_first() {
            let word = |at: usize| {
                rest.get(at..at + 4).map(|four| four.iter().fold(0, |n, &b| n << 8 | u32::from(b)))
            };
            let len = usize::from(rest.first().copied().unwrap_or(0));
            let (option, len) = match (kind, len) {
                (0, _) => (Some(Self::End), 1),
                (1, _) => (Some(Self::Nop), 1),
                (2, 4) => (rest.get(1..3).map(|two| Self::Mss(u16::from_be_bytes([two[0], two[1]]))), 4),
                (3, 3) => (rest.get(1).map(|&scale| Self::Scale(scale)), 3),
                (4, 2) => (Some(Self::SackOk), 2),
                (8, 10) => (word(1).zip(word(5)).map(|(a, b)| Self::Timestamps(Some(a), Some(b))), 10),
                (5, 10..) => {
                    let ranges = (0..(len - 2) / 8).map(|i| word(1 + 8 * i).zip(word(5 + 8 * i)));
                    (ranges.collect::<Option<_>>().map(Self::Sack), len)
                }
                _ => (None, bytes.len()),
            };
            options.push(option.unwrap_or_else(|| Self::Raw(bytes.to_vec())));
            bytes = bytes.get(len..).unwrap_or(&[]);
        }
        options
    }

    fn matches(&self, got: &Self) -> bool {
        let near = |wanted: Option<u32>, got: Option<u32>| {
            // The stack's clock may have ticked meanwhile.
            wanted.is_none_or(|wanted| got.is_some_and(|got| got.wrapping_sub(wanted).wrapping_add(1) <= 2))
        };
        match (self, got) {
            (Self::Timestamps(value, echo), Self::Timestamps(got, got_echo)) => {
                near(*value, *got) && echo.is_none_or(|echo| *got_echo == Some(echo))
            }
            _ => self == got,
        }
    }
}

impl fmt::Display for TcpOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let any = |value: &Option<u32>| value.map_or("*".into(), |value| value.to_string());
        match self {
            Self::Mss(mss) => write!(f, "mss {mss}"),
            Self::Scale(scale) => write!(f, "wscale {scale}"),
            Self::SackOk => f.write_str("sackOK"),
            Self::Timestamps(value, echo) => write!(f, "TS val {} ecr {}", any(value), any(echo)),
            Self::Sack(ranges) => {
                f.write_str("sack")?;
                ranges.iter().try_for_each(|(from, to)| write!(f, " {from}:{to}"))
            }
            Self::Nop => f.write_str("nop"),
            Self::End => f.write_str("eol"),
            Self::Raw(bytes) => {
                f.write_str("raw ")?;
                bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }
    }
}
