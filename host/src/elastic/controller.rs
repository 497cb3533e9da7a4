//! The decision, once per interval: the service borrows a core, gives one back, or keeps what it has.
//!
//! ```text
//!               above the upper bound
//!              ┌──────────────────▶ the service borrows a core
//!   look ──────┼─ between: no move
//!              └──────────────────▶ the service gives a borrowed core back
//!               below the lower bound, for PATIENCE intervals in a row
//! ```
//!
//! After a move the controller ignores [`SETTLE`] intervals. If the service needs a core again within [`MISSED_WITHIN`]
//! intervals after it gave one back, the next core is given back only after twice as many intervals below the lower
//! bound, up to [`MOST_DOUBLINGS`] doublings. So a load for which one core count is too few and the next too many causes
//! no oscillation: the service keeps the larger count. The doublings are reset when the service does not need the core
//! again in that time, and when the load rises without a recent return.
//!
//! The supervisor selects the lender, and refuses a core that no cell lends. The controller repeats a refused request
//! after a pause, which doubles with each refusal in a row.

use super::bounds::Bounds;
use super::window::WindowLatency;
use crate::output::human::duration_ns;
use std::fmt;

/// The maximum number of doublings of the patience below the lower bound.
const MOST_DOUBLINGS: u32 = 6;

/// A core that was given back was needed if the service must borrow one within this many intervals.
const MISSED_WITHIN: u32 = 10;

/// The maximum number of doublings of the pause after a refusal.
const MOST_PAUSE_DOUBLINGS: u32 = 4;

/// Consecutive intervals below the lower bound before the service gives a core back: it gets one at once.
const PATIENCE: u32 = 3;

/// Intervals after a move that the controller ignores.
const SETTLE: u32 = 1;

/// The measurements at the end of an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observation {
    /// The service's percentile, in ns.
    pub seen: WindowLatency,
    /// The number of the service's cores.
    pub cores: u32,
    /// The number of borrowed ones among them.
    pub borrowed: u32,
    /// The most cores that the service may have.
    pub most: u32,
}

/// A decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The service borrows a core.
    Take(Reason),
    /// The service gives a borrowed core back.
    Give(Reason),
    /// No core moves.
    Stay(Reason),
}

/// The reason for a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The figure is between the bounds.
    Within(u64),
    /// The figure, in ns, is above the upper bound.
    Above(u64),
    /// The figure, in ns, has been below the lower bound for this number of intervals.
    Below(u64, u32),
    /// The figure is above the upper bound, and the service has its most cores.
    HasMost(u64),
    /// The figure is below the lower bound, and the service has only cores of its own.
    HasLeast(u64),
    /// There were too few requests for a percentile.
    Little,
    /// Cores have just moved, or a move was refused.
    Settling,
}

/// The controller of one service.
#[derive(Clone, Debug)]
pub struct Controller {
    bounds: Bounds,
    /// Consecutive intervals below the lower bound.
    below: u32,
    /// Intervals to ignore.
    settle: u32,
    /// The number of doublings of the patience below the lower bound.
    doublings: u32,
    /// Intervals since the last return, if the service has not borrowed a core since.
    given_ago: Option<u32>,
    /// The number of refusals since the figure was last at or below the upper bound.
    refusals: u32,
}

impl Controller {
    /// Creates a controller that keeps a figure between `bounds`.
    pub const fn new(bounds: Bounds) -> Self {
        Self { bounds, below: 0, settle: 0, doublings: 0, given_ago: None, refusals: 0 }
    }

    /// Decides at the end of an interval.
    pub fn decide(&mut self, look: &Observation) -> Step {
        self.given_ago = self.given_ago.map(|intervals| intervals.saturating_add(1));
        if self.given_ago.is_some_and(|intervals| intervals > MISSED_WITHIN) {
            self.given_ago = None;
            self.doublings = 0;
        }
        if self.settle > 0 {
            self.settle -= 1;
            return Step::Stay(Reason::Settling);
        }
        let figure = match look.seen {
            WindowLatency::Little => return Step::Stay(Reason::Little),
            WindowLatency::Nothing => 0,
            WindowLatency::Percentile(ns) => ns,
        };
        if figure > self.bounds.upper_ns {
            self.below = 0;
            if look.cores >= look.most {
                return Step::Stay(Reason::HasMost(figure));
            }
            self.doublings = match self.given_ago.take() {
                Some(_) => (self.doublings + 1).min(MOST_DOUBLINGS),
                None => 0,
            };
            self.settle = SETTLE;
            return Step::Take(Reason::Above(figure));
        }
        self.refusals = 0;
        if figure >= self.bounds.lower_ns {
            self.below = 0;
            return Step::Stay(Reason::Within(figure));
        }
        self.below = self.below.saturating_add(1);
        if look.borrowed == 0 {
            return Step::Stay(Reason::HasLeast(figure));
        }
        let reason = Reason::Below(figure, self.below);
        if self.below < PATIENCE << self.doublings {
            return Step::Stay(reason);
        }
        (self.below, self.settle, self.given_ago) = (0, SETTLE, Some(0));
        Step::Give(reason)
    }

    /// Records that the last decision was refused: the controller pauses, longer with each refusal in a row.
    pub fn failed(&mut self) {
        self.given_ago = None;
        self.settle = SETTLE << self.refusals.min(MOST_PAUSE_DOUBLINGS);
        self.refusals += 1;
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let above = |ns| format!("{} is above the upper bound", duration_ns(ns));
        let below = |ns| match ns {
            0 => "no requests".to_owned(),
            _ => format!("{} is below the lower bound", duration_ns(ns)),
        };
        match *self {
            Self::Within(ns) => write!(f, "{} is between the bounds", duration_ns(ns)),
            Self::Above(ns) => f.write_str(&above(ns)),
            Self::Below(ns, 1) => write!(f, "{}, for 1 interval", below(ns)),
            Self::Below(ns, times) => write!(f, "{}, for {times} intervals", below(ns)),
            Self::HasMost(ns) => {
                write!(f, "{}, but the service has the most cores that it may have", above(ns))
            }
            Self::HasLeast(ns) => write!(f, "{}, but the service has no borrowed core", below(ns)),
            Self::Little => f.write_str("too few requests for a percentile"),
            Self::Settling => f.write_str("a pause after a move or a refusal"),
        }
    }
}

impl Reason {
    /// Returns the figure, if the reason has one.
    pub fn figure_ns(self) -> Option<u64> {
        match self {
            Self::Within(ns) | Self::Above(ns) | Self::Below(ns, _) => Some(ns),
            Self::HasMost(ns) | Self::HasLeast(ns) => Some(ns),
            Self::Little | Self::Settling => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BOUNDS: Bounds = Bounds { lower_ns: 2_000_000, upper_ns: 5_000_000 };

    /// A model of a machine: the service's latency at each number of cores, from one on. One core is its own.
    struct Plant {
        controller: Controller,
        service: u32,
        figures_ns: Vec<u64>,
    }

    impl Plant {
        fn new(figures_ns: Vec<u64>, service: u32) -> Self {
            Self { controller: Controller::new(BOUNDS), service, figures_ns }
        }

        fn interval(&mut self) -> Step {
            let most = self.figures_ns.len() as u32;
            let seen = WindowLatency::Percentile(self.figures_ns[self.service as usize - 1]);
            let look = Observation { seen, cores: self.service, borrowed: self.service - 1, most };
            let step = self.controller.decide(&look);
            match step {
                Step::Take(_) => self.service += 1,
                Step::Give(_) => self.service -= 1,
                Step::Stay(_) => {}
            }
            step
        }

        /// Returns the number of intervals, out of `intervals`, in which a core moved.
        fn moves(&mut self, intervals: u32) -> u32 {
            (0..intervals).map(|_| u32::from(!matches!(self.interval(), Step::Stay(_)))).sum()
        }
    }

    const MS: u64 = 1_000_000;

    /// Returns the measurements of a service with one core of its own and `borrowed` others.
    fn look(seen: WindowLatency, borrowed: u32) -> Observation {
        Observation { seen, cores: 1 + borrowed, borrowed, most: 4 }
    }

    #[test]
    fn a_slow_service_borrows_a_core_at_once() {
        let mut plant = Plant::new(vec![9 * MS, 8 * MS, 3 * MS], 1);
        assert_eq!(plant.interval(), Step::Take(Reason::Above(9 * MS)));
        assert_eq!(plant.interval(), Step::Stay(Reason::Settling));
        assert_eq!(plant.interval(), Step::Take(Reason::Above(8 * MS)));
        assert_eq!(plant.moves(100), 0);
        assert_eq!(plant.service, 3);
    }

    #[test]
    fn a_fast_service_gives_a_core_back_later() {
        let mut plant = Plant::new(vec![3 * MS, MS], 2);
        for times in 1..3 {
            assert_eq!(plant.interval(), Step::Stay(Reason::Below(MS, times)));
        }
        assert_eq!(plant.interval(), Step::Give(Reason::Below(MS, 3)));
        assert_eq!(plant.moves(100), 0);
    }

    #[test]
    fn no_requests_count_as_fast_and_few_requests_do_not_count() {
        let mut controller = Controller::new(BOUNDS);
        let mut decide = |seen| controller.decide(&look(seen, 1));
        assert_eq!(decide(WindowLatency::Nothing), Step::Stay(Reason::Below(0, 1)));
        assert_eq!(Reason::Below(0, 1).to_string(), "no requests, for 1 interval");
        assert!(Reason::HasLeast(0).to_string().starts_with("no requests, but"));
        assert_eq!(decide(WindowLatency::Nothing), Step::Stay(Reason::Below(0, 2)));
        assert_eq!(decide(WindowLatency::Little), Step::Stay(Reason::Little));
        assert_eq!(decide(WindowLatency::Nothing), Step::Give(Reason::Below(0, 3)));
    }

    #[test]
    fn limits_are_reasons() {
        let mut plant = Plant::new(vec![9 * MS], 1);
        assert_eq!(plant.interval(), Step::Stay(Reason::HasMost(9 * MS)));
        let mut plant = Plant::new(vec![MS], 1);
        assert_eq!(plant.interval(), Step::Stay(Reason::HasLeast(MS)));
    }

    #[test]
    fn a_refused_move_is_retried_after_ever_longer_pauses() {
        let mut controller = Controller::new(BOUNDS);
        let slow = look(WindowLatency::Percentile(9 * MS), 0);
        let mut pause = |look: &Observation| {
            controller.failed();
            (0..).take_while(|_| controller.decide(look) == Step::Stay(Reason::Settling)).count()
        };
        assert_eq!([0; 6].map(|_| pause(&slow)), [1, 2, 4, 8, 16, 16]);
        // Once the figure was good, the first pause is short again.
        pause(&look(WindowLatency::Percentile(3 * MS), 0));
        assert_eq!(pause(&slow), 1);
    }

    proptest! {
        #[test]
        fn limits_hold_for_all_figures(
            figures in proptest::collection::vec(0_u64..10 * MS, 1..200), (own, most) in (1_u32..4, 4_u32..8),
        ) {
            let mut controller = Controller::new(BOUNDS);
            let mut cores = own;
            let mut quiet = 1;
            for figure in figures {
                let look = Observation { seen: WindowLatency::Percentile(figure), cores, borrowed: cores - own, most };
                match controller.decide(&look) {
                    Step::Take(_) => {
                        prop_assert!(figure > BOUNDS.upper_ns);
                        cores += 1;
                    }
                    Step::Give(_) => {
                        prop_assert!(figure < BOUNDS.lower_ns);
                        cores -= 1;
                    }
                    Step::Stay(_) => {
                        quiet += 1;
                        continue;
                    }
                }
                prop_assert!(quiet >= 1, "figures count again only when the service has settled");
                quiet = 0;
                prop_assert!((own..=most).contains(&cores));
            }
        }

        #[test]
        fn a_load_with_a_right_core_count_reaches_it_and_keeps_it(
            mut figures in proptest::collection::vec(1_u64..20 * MS, 7), right in 0_usize..7, start in 1_u32..8,
        ) {
            figures.sort_unstable_by(|a, b| b.cmp(a));
            figures[right] = 3 * MS;
            // More cores never increase the latency.
            for (index, figure) in figures.iter_mut().enumerate() {
                *figure = if index < right { (*figure).max(3 * MS) } else { (*figure).min(3 * MS) };
            }
            let mut plant = Plant::new(figures, start);
            plant.moves(8 * 5);
            let at = plant.figures_ns[plant.service as usize - 1];
            prop_assert!((BOUNDS.lower_ns..=BOUNDS.upper_ns).contains(&at), "{at}");
            prop_assert_eq!(plant.moves(200), 0);
        }

        #[test]
        fn cores_do_not_oscillate_if_no_count_is_right(
            (too_few, too_many) in (1_usize..7, 1_u64..2 * MS), start in 1_u32..8,
        ) {
            let figures = (0..7).map(|index| if index < too_few { 9 * MS } else { too_many }).collect();
            let mut plant = Plant::new(figures, start);
            // Moves to the count, then with ever longer pauses, then a return and a loan per 3 * 2^6 intervals.
            let most = 7 + 2 * MOST_DOUBLINGS + 2 * 2_000 / (3 << MOST_DOUBLINGS) + 2;
            let moves = plant.moves(2_000);
            prop_assert!(moves <= most, "{moves} moves, {most} at most");
        }
    }
}
