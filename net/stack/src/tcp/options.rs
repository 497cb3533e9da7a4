//! TCP options: parsing those of received headers, writing those of outgoing headers.
//!
//! Nearly all segments of a connection with timestamps have the options `NOP NOP TS`, twelve bytes, and most SYNs have
//! `MSS SACK-PERMITTED TS NOP SCALE`, twenty bytes, as Linux lays them out. These two layouts have a fast path for both
//! directions. Other layouts, such as those with SACK blocks, are rare.

use super::MAX_WINDOW_SCALE;
use super::sack::{Block, SackBlocks};
use super::seq::Seq;
use etherparse::{TcpOptionElement, TcpOptionReadError, TcpOptionsIterator};

/// Length of timestamps in a header, in bytes, with padding.
pub(crate) const TIMESTAMPS_LEN: usize = 12;
/// Length of all options of a SYN, in bytes.
pub(crate) const SYN_LEN: usize = 20;
/// Maximum length of a header's options, in bytes.
const MAX_LEN: usize = 40;

/// The timestamps option (RFC 7323 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timestamps {
    /// Value of the sender's clock (TSval).
    pub value: u32,
    /// Latest value of the receiver's clock that the sender received (TSecr); valid only with the ACK flag.
    pub echo: u32,
}

impl Timestamps {
    /// Parses the layout `NOP NOP TS`; returns `None` for other contents.
    #[inline]
    pub fn read(bytes: &[u8; TIMESTAMPS_LEN]) -> Option<Self> {
        let [1, 1, 8, 10, a, b, c, d, e, f, g, h] = *bytes else { return None };
        Some(Self { value: u32::from_be_bytes([a, b, c, d]), echo: u32::from_be_bytes([e, f, g, h]) })
    }

    /// Writes the layout `NOP NOP TS`.
    #[inline(always)]
    pub fn write(self, into: &mut [u8; TIMESTAMPS_LEN]) {
        self.write_behind([1, 1], into);
    }

    /// Writes the timestamps behind the two given bytes, which align them.
    #[inline(always)]
    fn write_behind(self, padding: [u8; 2], into: &mut [u8; TIMESTAMPS_LEN]) {
        let words = [[padding[0], padding[1], 8, 10], self.value.to_be_bytes(), self.echo.to_be_bytes()];
        into.copy_from_slice(words.as_flattened());
    }
}

/// Whether a peer may send selective acknowledgements (RFC 2018 2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Sack {
    #[default]
    Refused,
    Permitted,
}

/// The options of a SYN with all options, except timestamps and the SACK permission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SynOptions {
    mss: u16,
    window_scale: u8,
}

impl SynOptions {
    /// Parses the layout of Linux (see the module); returns `None` for other contents.
    pub fn read(bytes: &[u8; SYN_LEN]) -> Option<Options> {
        let [2, 4, m, n, 4, 2, 8, 10, a, b, c, d, e, f, g, h, 1, 3, 3, scale] = *bytes else { return None };
        let (value, echo) = (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h]));
        Some(Options {
            mss: Some(u16::from_be_bytes([m, n])),
            window_scale: Some(scale.min(MAX_WINDOW_SCALE)),
            sack: Sack::Permitted,
            timestamps: Some(Timestamps { value, echo }),
        })
    }

    fn write(&self, timestamps: Timestamps, into: &mut [u8; SYN_LEN]) {
        let [m, n] = self.mss.to_be_bytes();
        let (v, e) = (timestamps.value.to_be_bytes(), timestamps.echo.to_be_bytes());
        *into = [
            2,
            4,
            m,
            n,
            4,
            2,
            8,
            10,
            v[0],
            v[1],
            v[2],
            v[3],
            e[0],
            e[1],
            e[2],
            e[3],
            1,
            3,
            3,
            self.window_scale,
        ];
    }
}

/// The options of a segment, without SACK blocks. All but the timestamps are valid only in a SYN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    pub mss: Option<u16>,
    pub window_scale: Option<u8>,
    pub sack: Sack,
    pub timestamps: Option<Timestamps>,
}

impl Options {
    /// Returns options with these timestamps, or none, and nothing else.
    pub const fn with_timestamps(timestamps: Option<Timestamps>) -> Self {
        Self { mss: None, window_scale: None, sack: Sack::Refused, timestamps }
    }

    /// Parses the options of a header up to the first malformed one. Unknown options are skipped.
    #[inline]
    pub fn read(bytes: &[u8]) -> (Self, SackBlocks) {
        match *bytes {
            [] => (Self::default(), SackBlocks::NONE),
            _ => match bytes.as_array().and_then(Timestamps::read) {
                Some(timestamps) => (Self::with_timestamps(Some(timestamps)), SackBlocks::NONE),
                None => Self::read_any(bytes),
            },
        }
    }

    #[cold]
    fn read_any(bytes: &[u8]) -> (Self, SackBlocks) {
        let (mut options, mut blocks) = (Self::default(), SackBlocks::NONE);
        let mut elements = TcpOptionsIterator::from_slice(bytes);
        loop {
            let rest = elements.rest();
            let Some(option) = elements.next() else { break };
            match option {
                Ok(TcpOptionElement::MaximumSegmentSize(mss)) => options.mss = Some(mss),
                Ok(TcpOptionElement::WindowScale(scale)) => {
                    options.window_scale = Some(scale.min(MAX_WINDOW_SCALE));
                }
                Ok(TcpOptionElement::SelectiveAcknowledgementPermitted) => options.sack = Sack::Permitted,
                Ok(TcpOptionElement::Timestamp(value, echo)) => {
                    options.timestamps = Some(Timestamps { value, echo });
                }
                Ok(TcpOptionElement::SelectiveAcknowledgement(first, more)) => {
                    let pairs = [Some(first)].into_iter().chain(more).flatten();
                    pairs.for_each(|(start, end)| blocks.push(Block { start: Seq(start), end: Seq(end) }));
                }
                Ok(_) => {}
                // An unknown option: skip it and continue behind it (RFC 9293 3.1, MUST-6).
                Err(TcpOptionReadError::UnknownId(_)) => match behind(rest) {
                    Some(rest) => elements = TcpOptionsIterator::from_slice(rest),
                    None => break,
                },
                Err(_) => break,
            }
        }
        (options, blocks)
    }

    /// Returns the length of these options and blocks in a header, in bytes.
    #[inline]
    pub fn len(&self, blocks: &SackBlocks) -> usize {
        let mss = if self.mss.is_some() { 4 } else { 0 };
        let scale = if self.window_scale.is_some() { 4 } else { 0 };
        let timestamps = if self.timestamps.is_some() { TIMESTAMPS_LEN } else { 0 };
        // With timestamps, the SACK permission takes the two bytes of their padding.
        let sack = if self.sack == Sack::Permitted && self.timestamps.is_none() { 4 } else { 0 };
        mss + scale + timestamps + sack + blocks.option_len()
    }

    /// Writes the options. `into` has exactly the length that [`len`](Self::len) returns.
    #[inline]
    pub fn write(&self, blocks: &SackBlocks, into: &mut [u8]) {
        if into.is_empty() {
            return;
        }
        // A length of twelve bytes is also that of the three other options of a SYN.
        if let (Some(timestamps), Some(bytes)) = (self.timestamps, into.as_mut_array::<TIMESTAMPS_LEN>()) {
            timestamps.write_behind(self.before_timestamps(), bytes);
        } else if let (Some((syn, timestamps)), Some(bytes)) = (self.of_syn(), into.as_mut_array()) {
            syn.write(timestamps, bytes);
        } else {
            self.write_any(blocks, into);
        }
    }

    /// Returns the parts of a SYN that has all options, else `None`.
    fn of_syn(&self) -> Option<(SynOptions, Timestamps)> {
        let Self { mss: Some(mss), window_scale: Some(window_scale), sack: Sack::Permitted, timestamps } =
            *self
        else {
            return None;
        };
        Some((SynOptions { mss, window_scale }, timestamps?))
    }

    /// Returns the two bytes before timestamps: padding, or the SACK permission.
    #[inline]
    const fn before_timestamps(&self) -> [u8; 2] {
        match self.sack {
            Sack::Permitted => [4, 2],
            Sack::Refused => [1, 1],
        }
    }

    #[cold]
    fn write_any(&self, blocks: &SackBlocks, into: &mut [u8]) {
        let mut bytes = [0; MAX_LEN];
        let mut len = 0;
        let mut put = |option: &[u8]| {
            if let Some(slot) = bytes.get_mut(len..len + option.len()) {
                slot.copy_from_slice(option);
                len += option.len();
            }
        };
        if let Some(mss) = self.mss {
            let [high, low] = mss.to_be_bytes();
            put(&[2, 4, high, low]);
        }
        match (self.timestamps, self.sack) {
            (Some(timestamps), _) => {
                let mut option = [0; TIMESTAMPS_LEN];
                timestamps.write_behind(self.before_timestamps(), &mut option);
                put(&option);
            }
            (None, Sack::Permitted) => put(&[1, 1, 4, 2]),
            (None, Sack::Refused) => {}
        }
        if let Some(scale) = self.window_scale {
            put(&[1, 3, 3, scale]);
        }
        if !blocks.is_empty() {
            put(&[1, 1, 5, (2 + 8 * blocks.iter().count()) as u8]);
            for block in blocks.iter() {
                put(&block.start.0.to_be_bytes());
                put(&block.end.0.to_be_bytes());
            }
        }
        into.copy_from_slice(bytes.get(..into.len()).unwrap_or(&[]));
    }
}

/// Returns the bytes behind the option at the start of `bytes`; `None` if its length is invalid.
fn behind(bytes: &[u8]) -> Option<&[u8]> {
    let len = usize::from(*bytes.get(1)?);
    bytes.get(len..).filter(|_| len >= 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use isola_proves::proves;
    use proptest::prelude::*;

    fn written(options: Options, blocks: SackBlocks) -> alloc::vec::Vec<u8> {
        let mut bytes = alloc::vec![0; options.len(&blocks)];
        options.write(&blocks, &mut bytes);
        bytes
    }

    #[proves("RFC 7323 A", "the layout that implementations read fastest.")]
    #[test]
    fn timestamps_alone_have_the_layout_of_rfc_7323() {
        let timestamps = Timestamps { value: 0x0102_0304, echo: 0x0506_0708 };
        let bytes = written(Options::with_timestamps(Some(timestamps)), SackBlocks::NONE);
        assert_eq!(bytes, [1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8]);
        assert!(written(Options::default(), SackBlocks::NONE).is_empty());
    }

    /// Returns whether the list ends within an option, which bytes behind it would complete.
    fn is_truncated(list: &[u8]) -> bool {
        match *list {
            [] | [0, ..] => false,
            [1, ref rest @ ..] => is_truncated(rest),
            [_] => true,
            // The parser stops at an option without a valid length.
            [_, 0 | 1, ..] => false,
            [_, len, ..] => list.get(usize::from(len)..).is_none_or(is_truncated),
        }
    }

    proptest! {
        #[test]
        fn written_options_parse_back(
            mss in any::<Option<u16>>(),
            scale in prop::option::of(0u8..15),
            permitted in any::<bool>(),
            timestamps in any::<Option<(u32, u32)>>(),
            blocks in prop::collection::vec(any::<(u32, u32)>(), 0..3),
        ) {
            let options = Options {
                mss,
                window_scale: scale,
                sack: if permitted { Sack::Permitted } else { Sack::Refused },
                timestamps: timestamps.map(|(value, echo)| Timestamps { value, echo }),
            };
            let mut list = SackBlocks::NONE;
            // The options of a SYN leave no room for SACK blocks, and a SYN never has any.
            if mss.is_none() && scale.is_none() {
                blocks.into_iter().for_each(|(a, b)| list.push(Block { start: Seq(a), end: Seq(b) }));
            }
            let bytes = written(options, list.clone());
            prop_assert!(bytes.len() <= MAX_LEN && bytes.len().is_multiple_of(4));
            let (read, read_blocks) = Options::read(&bytes);
            prop_assert_eq!(read, options);
            prop_assert!(read_blocks.iter().eq(list.iter()));
        }

        /// An option is parsed from its own bytes only: bytes behind a list of whole options change nothing, and a truncated
        /// list yields a subset of the options, with the same values.
        #[test]
        fn an_option_is_parsed_from_its_own_bytes_only(
            bytes in prop_oneof![
                prop::collection::vec(any::<u8>(), 0..41),
                any::<(Option<u16>, Option<(u32, u32)>)>().prop_map(|(mss, timestamps)| {
                    let timestamps = timestamps.map(|(value, echo)| Timestamps { value, echo });
                    let options = Options { mss, window_scale: Some(7), timestamps, ..Options::default() };
                    written(options, SackBlocks::NONE)
                }),
            ],
            cut in any::<prop::sample::Index>(),
        ) {
            let (whole, whole_blocks) = Options::read(&bytes);
            if !is_truncated(&bytes) {
                let ended = [&bytes[..], &[0; 20]].concat();
                let (read, blocks) = Options::read(&ended);
                prop_assert_eq!(read, whole);
                prop_assert!(blocks.iter().eq(whole_blocks.iter()));
            }
            let cut = cut.index(bytes.len() + 1);
            let (part, _) = Options::read(&bytes[..cut]);
            // If an option is present twice, the later one, which counts, may be cut off.
            let is_repeated = |kind: u8| bytes.iter().filter(|byte| **byte == kind).count() > 1;
            prop_assert!(part.mss.is_none() || part.mss == whole.mss || is_repeated(2));
            prop_assert!(part.timestamps.is_none() || part.timestamps == whole.timestamps || is_repeated(8));
            prop_assert!(part.mss.is_none() || cut >= 4, "MSS has four bytes");
            prop_assert!(part.timestamps.is_none() || cut >= 10, "timestamps have ten");
            prop_assert!(part.window_scale.is_none_or(|scale| scale <= 14 || whole.window_scale == Some(scale)));
        }
    }
}
