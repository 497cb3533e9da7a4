//! CUBIC (RFC 9438): after a loss the window grows along a cubic curve of time, independent of the round-trip time. The
//! curve is flat around the window of the last loss. The window grows at least as fast as NewReno's.
//!
//! All arithmetic uses integers: windows in bytes, times of the curve in milliseconds.

use super::hystart::{Growth, HyStart, SLOWER};
use super::{AckedData, CongestionControl, Timeout, initial_window, rescaled, rescaled_or_none};
use crate::base::{Duration, Instant};

/// Limit of the time from the plateau, in milliseconds. There the curve exceeds 400 million segments.
const FAR_MS: i64 = 1_000_000;

/// The CUBIC state of a connection.
#[derive(Debug)]
pub(super) struct Cubic {
    mss: u32,
    shape: Shape,
    /// Bytes acknowledged in congestion avoidance that have not been used for growth yet.
    credit: u32,
    /// The last measured round-trip time.
    rtt: Duration,
    hystart: HyStart,
    before: Shape,
}

/// The state that a loss changes and an undo restores.
#[derive(Clone, Copy, Debug)]
struct Shape {
    window: u32,
    threshold: u32,
    /// The window at the last loss (W_max), reduced if windows shrink from loss to loss; 0 after a timeout.
    peak: u32,
    /// The window before the last loss.
    prior: u32,
    curve: Option<Curve>,
}

impl Shape {
    /// Keeps the numbers of segments, for segments of `new` instead of `old` bytes. The curve starts anew.
    fn rescale(&mut self, old: u32, new: u32) {
        self.window = rescaled(self.window, old, new);
        for bytes in [&mut self.threshold, &mut self.peak, &mut self.prior] {
            *bytes = rescaled_or_none(*bytes, old, new);
        }
        self.curve = None;
    }
}

/// The cubic curve between two losses.
#[derive(Clone, Copy, Debug)]
struct Curve {
    begin: Instant,
    /// Time from the start to the plateau (K).
    plateau_ms: i64,
    /// The window at the plateau.
    height: u32,
    /// The window that NewReno would have (W_est).
    friendly: u32,
}

impl Curve {
    fn new(now: Instant, window: u32, peak: u32, mss: u32) -> Self {
        let climb = u64::from(peak.saturating_sub(window));
        // K = cbrt(climb in segments / 0.4), in seconds.
        let plateau_ms = cube_root(climb * 2_500_000_000 / u64::from(mss.max(1))) as i64;
        Self { begin: now, plateau_ms, height: peak.max(window), friendly: window }
    }

    /// Returns the curve's window at a time (W_cubic).
    fn at(&self, now: Instant, mss: u32) -> u64 {
        let elapsed_ms = i64::try_from(now.since(self.begin).as_millis()).unwrap_or(FAR_MS);
        let distance = elapsed_ms.saturating_sub(self.plateau_ms).clamp(-FAR_MS, FAR_MS);
        // 0.4 x seconds cubed, in thousandths of segments.
        let segments = 2 * distance * distance * distance / 5_000_000;
        let bytes = segments / 1000 * i64::from(mss) + segments % 1000 * i64::from(mss) / 1000;
        u64::try_from(i64::from(self.height) + bytes).unwrap_or(0)
    }
}

/// Returns the largest number whose cube is at most `value`.
fn cube_root(value: u64) -> u64 {
    let mut root = 0u64;
    for bit in (0..22).rev() {
        let tried = root | 1 << bit;
        if tried.checked_pow(3).is_some_and(|cube| cube <= value) {
            root = tried;
        }
    }
    root
}

impl Cubic {
    pub fn new(mss: u32) -> Self {
        let window = initial_window(mss);
        let shape = Shape { window, threshold: u32::MAX, peak: 0, prior: 0, curve: None };
        Self { mss, shape, credit: 0, rtt: Duration::ZERO, hystart: HyStart::default(), before: shape }
    }

    fn start_slowly(&mut self, arrived: &AckedData) {
        let mut growth = Growth::Fast;
        // At most eight segments per acknowledgement (RFC 9406 4.2), and two after a loss (RFC 3465 2.3).
        let mut most = 2 * self.mss;
        if self.shape.threshold == u32::MAX {
            growth = self.hystart.on_ack(arrived.rtt, arrived.round);
            most = 8 * self.mss;
        }
        let step = arrived.bytes.min(most);
        match growth {
            Growth::Fast => self.shape.window = self.shape.window.saturating_add(step),
            Growth::Slow => self.shape.window = self.shape.window.saturating_add(step / SLOWER),
            Growth::Ended => self.shape.threshold = self.shape.window,
        }
    }

    fn avoid(&mut self, now: Instant, bytes: u32) {
        self.credit = self.credit.saturating_add(bytes);
        // The update needs divisions; eight per round trip are sufficient.
        if self.credit < self.shape.window / 8 {
            return;
        }
        let acked = u64::from(core::mem::take(&mut self.credit));
        let (window, peak, mss) = (self.shape.window, self.shape.peak, self.mss);
        let prior = self.shape.prior;
        let curve = self.shape.curve.get_or_insert_with(|| Curve::new(now, window, peak, mss));
        let (window, mss) = (u64::from(window), u64::from(self.mss));
        // With this decrease NewReno grows by 9/17 of a segment per round trip, and by one segment beyond the window
        // before the loss.
        let (times, of) = if curve.friendly < prior { (9, 17) } else { (1, 1) };
        let step = mss * acked * times / (window * of);
        curve.friendly = curve.friendly.saturating_add(u32::try_from(step).unwrap_or(u32::MAX));
        let grown = if curve.at(now, self.mss) < u64::from(curve.friendly) {
            window.max(u64::from(curve.friendly))
        } else {
            let target = curve.at(now + self.rtt, self.mss).clamp(window, window * 3 / 2);
            window + (target - window) * acked / window
        };
        self.shape.window = u32::try_from(grown).unwrap_or(u32::MAX);
    }

    fn lower_threshold(&mut self, in_flight: u32) {
        self.before = self.shape;
        self.credit = 0;
        let shape = &mut self.shape;
        let lowered = u64::from(in_flight) * 7 / 10;
        shape.threshold = u32::try_from(lowered).unwrap_or(u32::MAX).max(2 * self.mss);
        shape.prior = shape.window;
        shape.curve = None;
    }
}

impl CongestionControl for Cubic {
    fn name(&self) -> &'static str {
        "CUBIC"
    }

    fn window(&self) -> u32 {
        self.shape.window
    }

    fn threshold(&self) -> u32 {
        self.shape.threshold
    }

    fn on_unused(&mut self, span: Duration, rtt: Option<Duration>) {
        self.rtt = rtt.unwrap_or(self.rtt);
        // Time with an unused window is excluded from the curve (RFC 9438 5.8).
        if let Some(curve) = &mut self.shape.curve {
            curve.begin += span;
        }
    }

    fn on_ack(&mut self, arrived: AckedData) {
        if let Some(rtt) = arrived.rtt {
            self.rtt = rtt;
        }
        if self.shape.window < self.shape.threshold {
            self.start_slowly(&arrived);
        } else {
            self.avoid(arrived.now, arrived.bytes);
        }
    }

    fn on_loss(&mut self, _now: Instant, in_flight: u32) {
        self.lower_threshold(in_flight);
        let shape = &mut self.shape;
        // A loss at a smaller window than the last one lowers the plateau, which gives room to other flows (4.7, fast
        // convergence).
        let shrinks = shape.window < shape.peak;
        shape.peak = if shrinks { (u64::from(shape.window) * 17 / 20) as u32 } else { shape.window };
        shape.window = shape.threshold;
    }

    fn on_recovered(&mut self) {
        self.shape.window = self.shape.threshold;
    }

    fn on_timeout(&mut self, _now: Instant, in_flight: u32, timeout: Timeout) {
        if timeout == Timeout::First {
            self.lower_threshold(in_flight);
            self.shape.peak = 0;
        }
        self.shape.window = self.mss;
    }

    fn on_undo(&mut self) {
        let (window, threshold) = (self.shape.window, self.shape.threshold);
        self.shape = self.before;
        self.shape.window = self.shape.window.max(window);
        self.shape.threshold = self.shape.threshold.max(threshold);
    }

    fn on_idle(&mut self) {
        self.shape.window = self.shape.window.min(initial_window(self.mss));
        self.shape.curve = None;
    }

    fn start(&mut self, mss: u32) {
        *self = Self::new(mss);
    }

    fn set_mss(&mut self, mss: u32) {
        self.shape.rescale(self.mss, mss);
        self.before.rescale(self.mss, mss);
        self.mss = mss;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::congestion::Round;
    use isola_proves::proves;

    const MSS: u32 = 1000;

    /// Acknowledges a window of data per round trip for a time. Returns the window.
    fn pass(cubic: &mut Cubic, now: &mut Instant, rtt: Duration, span: Duration) -> u32 {
        let end = *now + span;
        while *now < end {
            *now += rtt;
            let acks = cubic.window() / MSS;
            for number in 0..acks {
                let round = if number == 0 { Round::New } else { Round::Same };
                cubic.on_ack(AckedData { bytes: MSS, now: *now, rtt: Some(rtt), round });
            }
        }
        cubic.window()
    }

    /// Returns the state of a connection that lost a segment at this window, in segments, and recovered.
    fn after_loss(segments: u32) -> Cubic {
        let mut cubic = Cubic::new(MSS);
        cubic.shape.window = segments * MSS;
        cubic.on_loss(Instant::ZERO, segments * MSS);
        cubic.on_recovered();
        cubic
    }

    #[proves("RFC 9438 4.6", "a loss reduces the window to seven tenths of the flight.")]
    #[proves("RFC 9438 4.7", "a loss at a smaller window than the last one lowers the plateau below it.")]
    #[test]
    fn a_loss_leaves_seven_tenths_and_shrinking_windows_lower_the_plateau() {
        let mut cubic = after_loss(1000);
        assert_eq!((cubic.window(), cubic.shape.peak), (700_000, 1_000_000));
        cubic.on_loss(Instant::ZERO, 700_000);
        assert_eq!((cubic.window(), cubic.shape.peak), (490_000, 595_000));
    }

    #[proves("RFC 9438 4.2", "the window follows 0.4 (t - K)^3 + W_max, with K = cbrt(0.3 W_max / 0.4).")]
    #[test]
    fn the_window_follows_the_curve() {
        let (mut cubic, mut now) = (after_loss(1000), Instant::ZERO);
        let rtt = Duration::from_millis(100);
        let k = (300.0f64 / 0.4).cbrt();
        for second in 1..16 {
            let window = f64::from(pass(&mut cubic, &mut now, rtt, Duration::from_secs(1))) / 1000.0;
            let expected = 0.4 * (f64::from(second) - k).powi(3) + 1000.0;
            let error = (window - expected).abs() / expected;
            assert!(error < 0.04, "{window} segments after {second} s, not {expected}");
        }
    }

    #[proves("RFC 9438 4.3", "on a short path the window grows as NewReno's, which is faster there.")]
    #[test]
    fn the_window_grows_like_new_renos_on_a_short_path() {
        let (mut cubic, mut now) = (after_loss(20), Instant::ZERO);
        let rtt = Duration::from_millis(1);
        let window = pass(&mut cubic, &mut now, rtt, Duration::from_millis(12));
        // Twelve round trips with 9/17 of a segment each; the cubic curve adds hardly anything.
        assert!((19_500..=21_000).contains(&window), "{window}");
        let window = pass(&mut cubic, &mut now, rtt, Duration::from_millis(10));
        assert!(window >= 28_000, "a segment per round trip beyond the window before the loss: {window}");
    }

    #[proves("RFC 9438 4.8", "after a timeout the curve starts at its plateau.")]
    #[test]
    fn a_timeout_leaves_one_segment_and_no_plateau() {
        let mut cubic = after_loss(1000);
        cubic.on_timeout(Instant::ZERO, 700_000, Timeout::First);
        assert_eq!((cubic.window(), cubic.threshold(), cubic.shape.peak), (1000, 490_000, 0));
        cubic.on_timeout(Instant::ZERO, 1000, Timeout::Repeated);
        assert_eq!(cubic.threshold(), 490_000);
    }

    #[proves("RFC 9438 4.9.2", "the undo of a spurious loss restores the curve.")]
    #[test]
    fn the_undo_of_a_spurious_loss_restores_the_state() {
        let (mut cubic, mut now) = (after_loss(1000), Instant::ZERO);
        pass(&mut cubic, &mut now, Duration::from_millis(100), Duration::from_secs(3));
        let before = cubic.shape;
        cubic.on_loss(now, 900_000);
        cubic.on_undo();
        assert_eq!((cubic.window(), cubic.shape.peak), (before.window, before.peak));
        assert!(cubic.shape.curve.is_some());
    }

    #[test]
    fn smaller_segments_keep_their_number_in_all_windows_and_the_undo() {
        let mut cubic = Cubic::new(MSS);
        cubic.set_mss(MSS / 2);
        assert_eq!((cubic.window(), cubic.threshold(), cubic.shape.peak), (5000, u32::MAX, 0));
        let mut cubic = after_loss(1000);
        cubic.set_mss(MSS / 2);
        let Shape { window, threshold, peak, prior, .. } = cubic.shape;
        assert_eq!((window, threshold, peak, prior), (350_000, 350_000, 500_000, 500_000));
        cubic.on_recovered();
        assert_eq!(cubic.window(), 350_000);
        cubic.on_undo();
        assert_eq!((cubic.window(), cubic.threshold(), cubic.shape.peak), (500_000, u32::MAX, 0));
    }

    #[test]
    fn cube_roots_are_exact() {
        for value in [0, 1, 7, 8, 26, 27, 999_999_999, 1_000_000_000, u64::MAX] {
            let root = cube_root(value);
            assert!(root * root * root <= value && (root + 1).checked_pow(3).is_none_or(|next| next > value));
        }
    }

    #[test]
    fn no_window_or_time_overflows() {
        for mss in [64, 1460, 65_535] {
            let mut cubic = Cubic::new(mss);
            cubic.shape.window = u32::MAX - 10;
            cubic.on_loss(Instant::ZERO, u32::MAX);
            for seconds in [0, 1, 1_000_000, u64::MAX / 2_000_000_000] {
                let now = Instant::ZERO + Duration::from_secs(seconds);
                cubic.on_ack(AckedData { bytes: u32::MAX, now, rtt: None, round: Round::New });
                assert!(cubic.window() >= mss);
            }
        }
    }
}
