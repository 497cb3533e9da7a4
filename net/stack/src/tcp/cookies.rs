//! SYN cookies (RFC 4987 3.6): handshakes without any state, while the table of half-open handshakes is full.
//!
//! The state that completes a handshake is encoded in our initial sequence number, which the peer's last segment of the
//! handshake acknowledges:
//!
//! ```text
//!    31   30..28    27 .. 0
//!   tick  segment   keyed hash of flow, peer's initial sequence number, tick and segment size
//!         size
//! ```
//!
//! A tick lasts 64 s. A cookie is valid for the rest of its tick and the next one. If the peer uses timestamps, which
//! it echoes, the lowest bits of our timestamp encode its window scale and SACK permission; without timestamps, the
//! connection has neither. The SYN-ACK with a cookie is not retransmitted.
//!
//! Cookies are accepted only while a sent one can still return: a forger has one chance in 2^28 per guess, and only
//! during a flood.

use super::isn::flow_bytes;
use super::options::{Options, Sack, Timestamps};
use super::seq::Seq;
use crate::base::{Duration, Flow, Instant, Secret};
use siphasher::sip::SipHasher24;

/// Duration of a tick.
const TICK: Duration = Duration::from_secs(64);
/// The segment sizes that a cookie can encode. It encodes the largest one that does not exceed the peer's.
const SIZES: [u16; 8] = [super::segment::MIN_MSS, 536, 1024, 1220, 1360, 1440, 1460, 8960];
/// Number of bits of the hash.
const HASH_BITS: u32 = 28;
/// Number of timestamp bits that encode options: four for the window scale, one for the SACK permission.
const STAMP_BITS: u32 = 5;
/// The encoded scale of a peer without a window scale.
const NO_SCALE: u32 = 15;

/// Makes and checks the cookies of a stack.
#[derive(Debug)]
pub(crate) struct Cookies {
    hasher: SipHasher24,
    /// The tick of the latest sent cookie.
    sent: Option<u64>,
}

impl Cookies {
    pub fn new(secret: &Secret) -> Self {
        let (a, b) = secret.keys(7);
        Self { hasher: SipHasher24::new_with_keys(a, b), sent: None }
    }

    /// Returns the initial sequence number for the SYN-ACK, and records that a cookie was sent now.
    pub fn make(&mut self, now: Instant, flow: &Flow, remote_initial: Seq, mss: u16) -> Seq {
        let tick = tick_at(now);
        self.sent = Some(tick);
        let size = SIZES.iter().rposition(|&size| size <= mss).unwrap_or(0) as u32;
        Seq(self.cookie(tick, flow, remote_initial, size))
    }

    /// Returns the encoded segment size if `cookie` is a valid cookie of this stack's secret, else `None`.
    pub fn check(&self, now: Instant, flow: &Flow, remote_initial: Seq, cookie: Seq) -> Option<u16> {
        let size = cookie.0 >> HASH_BITS & 7;
        let tick = tick_at(now);
        // The cookie's tick is one of the last two; its lowest bit is in the cookie.
        let tick = if tick as u32 & 1 == cookie.0 >> 31 { tick } else { tick.checked_sub(1)? };
        let ours = self.cookie(tick, flow, remote_initial, size) == cookie.0;
        ours.then_some(*SIZES.get(size as usize)?)
    }

    /// Returns the tick of the latest sent cookie.
    pub const fn sent(&self) -> Option<u64> {
        self.sent
    }

    /// Records the tick of the latest cookie of another stack with the same secret.
    pub fn expect(&mut self, sent: Option<u64>) {
        self.sent = self.sent.max(sent);
    }

    /// Returns whether a sent cookie can still return.
    pub fn are_out(&self, now: Instant) -> bool {
        self.sent.is_some_and(|sent| tick_at(now) <= sent + 1)
    }

    fn cookie(&self, tick: u64, flow: &Flow, remote_initial: Seq, size: u32) -> u32 {
        let mut bytes = [0; 36 + 4 + 8 + 1];
        let (ends, rest) = bytes.split_at_mut(36);
        ends.copy_from_slice(&flow_bytes(flow));
        let (initial, rest) = rest.split_at_mut(4);
        initial.copy_from_slice(&remote_initial.0.to_be_bytes());
        let (ticks, rest) = rest.split_at_mut(8);
        ticks.copy_from_slice(&tick.to_be_bytes());
        rest.fill(size as u8);
        let hash = self.hasher.hash(&bytes) as u32 & ((1 << HASH_BITS) - 1);
        (tick as u32) << 31 | size << HASH_BITS | hash
    }
}

fn tick_at(now: Instant) -> u64 {
    now.as_nanos() / TICK.as_nanos()
}

/// Returns the options of a SYN-ACK with a cookie. `usual` are its options without a cookie, `theirs` those of the
/// peer's SYN.
pub(crate) fn options_of_answer(usual: Options, theirs: &Options) -> Options {
    let Some(stamps) = usual.timestamps else { return Options { mss: usual.mss, ..Options::default() } };
    let scale = theirs.window_scale.map_or(NO_SCALE, u32::from);
    let sack = u32::from(theirs.sack == Sack::Permitted);
    let mask = (1 << STAMP_BITS) - 1;
    let mut value = stamps.value & !mask | scale << 1 | sack;
    // The connection's clock continues from this value; the value is never ahead of the clock, so the clock never goes
    // back.
    if value.wrapping_sub(stamps.value) as i32 > 0 {
        value = value.wrapping_sub(1 << STAMP_BITS);
    }
    Options { timestamps: Some(Timestamps { value, ..stamps }), ..usual }
}

/// Returns the options of the peer's SYN. `mss` is decoded from the cookie, and `echoed` are the options of the segment
/// that returned it.
pub(crate) fn options_of_syn(mss: u16, echoed: &Options) -> Options {
    let mut options = Options { mss: Some(mss), ..Options::with_timestamps(echoed.timestamps) };
    if let Some(stamps) = echoed.timestamps {
        let scale = stamps.echo >> 1 & NO_SCALE;
        options.window_scale = (scale != NO_SCALE).then_some(scale as u8);
        options.sack = if stamps.echo & 1 == 1 { Sack::Permitted } else { Sack::Refused };
    }
    options
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::Ipv4Addr;
    use isola_proves::proves;
    use proptest::prelude::*;

    fn flow(port: u16) -> Flow {
        let (a, b) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
        Flow::new(a.into(), 80, b.into(), port)
    }

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    #[proves("RFC 4987 3.6", "a cookie is valid for a bounded time")]
    #[test]
    fn a_cookie_is_valid_for_its_tick_and_the_next() {
        for start in [0, 63, 64, 100, 127, 1_000_000] {
            let mut cookies = Cookies::new(&Secret([7; 32]));
            assert!(!cookies.are_out(at(start)));
            let cookie = cookies.make(at(start), &flow(9), Seq(5), 1460);
            let end = (start / 64 + 2) * 64;
            assert_eq!(cookies.check(at(start), &flow(9), Seq(5), cookie), Some(1460));
            assert_eq!(cookies.check(at(end - 1), &flow(9), Seq(5), cookie), Some(1460));
            assert_eq!(cookies.check(at(end), &flow(9), Seq(5), cookie), None);
            assert!(cookies.are_out(at(end - 1)) && !cookies.are_out(at(end)));
        }
    }

    #[proves(
        "RFC 4987 3.6",
        "a cookie is valid for one flow and one initial sequence number of the peer, and cannot be forged"
    )]
    #[test]
    fn a_cookie_is_valid_for_one_handshake_and_one_secret() {
        let mut cookies = Cookies::new(&Secret([7; 32]));
        let cookie = cookies.make(at(0), &flow(9), Seq(5), 1460);
        assert_eq!(cookies.check(at(0), &flow(10), Seq(5), cookie), None);
        assert_eq!(cookies.check(at(0), &flow(9), Seq(6), cookie), None);
        assert_eq!(Cookies::new(&Secret([8; 32])).check(at(0), &flow(9), Seq(5), cookie), None);
        let changed =
            (0..32).filter(|bit| cookies.check(at(64), &flow(9), Seq(5), Seq(cookie.0 ^ 1 << bit)).is_some());
        assert_eq!(changed.count(), 0);
    }

    #[test]
    fn the_seeds_of_dhcp_and_udp_are_not_the_keys_of_cookies() {
        let secret = Secret([7; 32]);
        // The transaction numbers of DHCP and the first port of UDP reveal these.
        let (dhcp_seed, udp_seed) = secret.keys(4);
        let guessed = Cookies { hasher: SipHasher24::new_with_keys(dhcp_seed, udp_seed), sent: None };
        let cookie = Cookies::new(&secret).make(at(0), &flow(9), Seq(5), 1460);
        assert_eq!(guessed.check(at(0), &flow(9), Seq(5), cookie), None);
    }

    proptest! {
        #[test]
        fn the_encoded_segment_size_never_exceeds_the_peers(mss in 64u16.., seconds in 0u64..1_000_000) {
            let mut cookies = Cookies::new(&Secret([7; 32]));
            let cookie = cookies.make(at(seconds), &flow(9), Seq(5), mss);
            let size = cookies.check(at(seconds), &flow(9), Seq(5), cookie).expect("our cookie is valid");
            prop_assert!(size <= mss && (mss < 536 || size >= 536));
        }

        #[test]
        fn timestamps_encode_the_other_options_and_never_go_back(
            value in any::<u32>(), scale in prop::option::of(0u8..15), sack in any::<bool>(),
        ) {
            let sack = if sack { Sack::Permitted } else { Sack::Refused };
            let theirs = Options { window_scale: scale, sack, ..Options::default() };
            let usual = Options::with_timestamps(Some(Timestamps { value, echo: 9 }));
            let answer = options_of_answer(usual, &theirs);
            let sent = answer.timestamps.expect("timestamps");
            prop_assert!(value.wrapping_sub(sent.value) < 64);
            prop_assert_eq!(sent.echo, 9);
            let back = Options::with_timestamps(Some(Timestamps { value: 1, echo: sent.value }));
            let options = options_of_syn(1460, &back);
            prop_assert_eq!((options.window_scale, options.sack, options.mss), (scale, sack, Some(1460)));
        }
    }

    #[test]
    fn without_timestamps_only_the_segment_size_is_encoded() {
        let usual =
            Options { mss: Some(1400), window_scale: Some(7), sack: Sack::Permitted, timestamps: None };
        assert_eq!(options_of_answer(usual, &usual), Options { mss: Some(1400), ..Options::default() });
        assert_eq!(
            options_of_syn(536, &Options::default()),
            Options { mss: Some(536), ..Options::default() }
        );
    }
}
