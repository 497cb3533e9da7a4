//! The decision, once per interval: a core to the service, a core back, or no move.
//!
//! ```text
//!               above the upper bound, `above` intervals in a row
//!              ┌──────────────────▶ a core comes from the donor with the most cores
//!   look ──────┼─ between: no move
//!              └──────────────────▶ a core goes to the donor with the fewest cores
//!               below the lower bound, `below` intervals in a row
//! ```
//!
//! After a move the controller ignores `settle` intervals. If the service needs a core back within [`MISSED_WITHIN`]
//! intervals after it gave one away, the next core is given only after twice as many intervals below the lower bound,
//! up to [`MOST_DOUBLINGS`] doublings. So a load for which one core count is too few and the next too many causes no
//! oscillation: the service keeps the larger count. The doublings are reset when a given core is not needed back in
//! that time, and when the load rises without a recent give.

use super::bounds::Bounds;
use super::window::Seen;
use crate::output::human::duration_ns;
use std::fmt;

/// The maximum number of doublings of the patience below the lower bound.
const MOST_DOUBLINGS: u32 = 6;

/// A core that was given away was needed if the service must take one back within this many intervals.
const MISSED_WITHIN: u32 = 10;

/// Numbers of intervals before the controller acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Consecutive intervals above the upper bound before it takes a core.
    pub above: u32,
    /// Consecutive intervals below the lower bound before it gives one.
    pub below: u32,
    /// Intervals after a move that it ignores.
    pub settle: u32,
}

impl Default for Patience {
    /// A slow service gets a core at once; a fast one gives a core only after some time.
    fn default() -> Self {
        Self { above: 1, below: 3, settle: 1 }
    }
}

/// A cell that gives cores to the service and gets them back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Donor {
    /// The number of its cores.
    pub cores: u32,
    /// The fewest cores that it keeps.
    pub least: u32,
    /// The most cores that it gets.
    pub most: u32,
}

/// The measurements at the end of an interval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Look {
    /// The service's percentile, in ns.
    pub seen: Seen,
    /// The number of the service's cores.
    pub cores: u32,
    /// The donors.
    pub donors: Vec<Donor>,
}

/// A decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A core moves from the donor of that index to the service.
    Take(usize, Reason),
    /// A core moves from the service to the donor of that index.
    Give(usize, Reason),
    /// No core moves.
    Stay(Reason),
}

/// The reason for a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The figure is between the bounds.
    Within(u64),
    /// The figure, in ns, has been above the upper bound for this number of intervals.
    Above(u64, u32),
    /// The figure, in ns, has been below the lower bound for this number of intervals.
    Below(u64, u32),
    /// The figure is above the upper bound, and the service has its most cores.
    HasMost(u64),
    /// The figure is above the upper bound, and no donor has a core to spare.
    NoDonor(u64),
    /// The figure is below the lower bound, and the service has its fewest cores, or no donor takes one.
    HasLeast(u64),
    /// There were too few requests for a percentile.
    Little,
    /// Cores have just moved.
    Settling,
}

/// The controller of one service.
#[derive(Clone, Debug)]
pub struct Controller {
    bounds: Bounds,
    least: u32,
    most: u32,
    patience: Patience,
    above: u32,
    below: u32,
    /// Intervals to ignore.
    settle: u32,
    /// The number of doublings of the patience below the lower bound.
    doublings: u32,
    /// Intervals since the last give, if no take followed.
    given_ago: Option<u32>,
}

impl Controller {
    /// Creates a controller that keeps a figure between `bounds` by giving the service `least` to `most` cores.
    pub fn new(bounds: Bounds, least: u32, most: u32, patience: Patience) -> Self {
        Self {
            bounds,
            least: least.max(1),
            most,
            patience,
            above: 0,
            below: 0,
            settle: 0,
            doublings: 0,
            given_ago: None,
        }
    }

    /// Decides at the end of an interval.
    pub fn decide(&mut self, look: &Look) -> Step {
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
            Seen::Little => return Step::Stay(Reason::Little),
            Seen::Nothing => 0,
            Seen::Percentile(ns) => ns,
        };
        if figure > self.bounds.upper_ns {
            self.below = 0;
            self.above = self.above.saturating_add(1);
            return self.take(look, figure);
        }
        self.above = 0;
        if figure < self.bounds.lower_ns {
            self.below = self.below.saturating_add(1);
            return self.give(look, figure);
        }
        self.below = 0;
        Step::Stay(Reason::Within(figure))
    }

    /// Records that the last decision could not be executed: the controller pauses as it does after a move, at least
    /// for one interval.
    pub fn failed(&mut self) {
        self.given_ago = None;
        self.settle = self.patience.settle.max(1);
    }

    fn take(&mut self, look: &Look, figure: u64) -> Step {
        let spare = look.donors.iter().enumerate().filter(|(_, donor)| donor.cores > donor.least.max(1));
        let richest = spare.max_by_key(|(index, donor)| (donor.cores, std::cmp::Reverse(*index)));
        match richest {
            _ if look.cores >= self.most => Step::Stay(Reason::HasMost(figure)),
            None => Step::Stay(Reason::NoDonor(figure)),
            Some(_) if self.above < self.patience.above => Step::Stay(Reason::Above(figure, self.above)),
            Some((donor, _)) => {
                self.doublings = match self.given_ago.take() {
                    Some(_) => (self.doublings + 1).min(MOST_DOUBLINGS),
                    None => 0,
                };
                Step::Take(donor, Reason::Above(figure, self.moved(self.above)))
            }
        }
    }

    fn give(&mut self, look: &Look, figure: u64) -> Step {
        let room = look.donors.iter().enumerate().filter(|(_, donor)| donor.cores < donor.most);
        let poorest = room.min_by_key(|(index, donor)| (donor.cores, *index));
        match poorest {
            _ if look.cores <= self.least => Step::Stay(Reason::HasLeast(figure)),
            None => Step::Stay(Reason::HasLeast(figure)),
            Some(_) if self.below < self.patience.below << self.doublings => {
                Step::Stay(Reason::Below(figure, self.below))
            }
            Some((donor, _)) => {
                self.given_ago = Some(0);
                Step::Give(donor, Reason::Below(figure, self.moved(self.below)))
            }
        }
    }

    /// Resets the counters after a move, and returns `intervals`.
    fn moved(&mut self, intervals: u32) -> u32 {
        (self.above, self.below, self.settle) = (0, 0, self.patience.settle);
        intervals
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let intervals = |count: u32| if count == 1 { "interval" } else { "intervals" };
        match *self {
            Self::Within(ns) => write!(f, "{} is between the bounds", duration_ns(ns)),
            Self::Above(ns, times) => {
                write!(f, "{} is above the upper bound, for {times} {}", duration_ns(ns), intervals(times))
            }
            Self::Below(0, times) => write!(f, "no requests, for {times} {}", intervals(times)),
            Self::HasLeast(0) => {
                f.write_str("no requests, but the service has no core to give, or no batch cell takes it")
            }
            Self::Below(ns, times) => {
                write!(f, "{} is below the lower bound, for {times} {}", duration_ns(ns), intervals(times))
            }
            Self::HasMost(ns) => {
                write!(
                    f,
                    "{} is above the upper bound, but the service has the most cores that it may have",
                    duration_ns(ns)
                )
            }
            Self::NoDonor(ns) => {
                write!(
                    f,
                    "{} is above the upper bound, but no batch cell has a core to spare",
                    duration_ns(ns)
                )
            }
            Self::HasLeast(ns) => {
                write!(
                    f,
                    "{} is below the lower bound, but the service has no core to give, or no batch cell takes it",
                    duration_ns(ns)
                )
            }
            Self::Little => f.write_str("too few requests for a percentile"),
            Self::Settling => f.write_str("cores have just moved"),
        }
    }
}

impl Reason {
    /// Returns whether the service needs a core and cannot get one.
    pub fn is_stuck(self) -> bool {
        matches!(self, Self::HasMost(_) | Self::NoDonor(_))
    }

    /// Returns the figure, if the reason has one.
    pub fn figure_ns(self) -> Option<u64> {
        match self {
            Self::Within(ns) | Self::HasMost(ns) | Self::NoDonor(ns) | Self::HasLeast(ns) => Some(ns),
            Self::Above(ns, _) | Self::Below(ns, _) => Some(ns),
            Self::Little | Self::Settling => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BOUNDS: Bounds = Bounds { lower_ns: 2_000_000, upper_ns: 5_000_000 };

    /// A model of a machine: the service's latency at each number of cores, from one on.
    struct Plant {
        controller: Controller,
        service: u32,
        donors: Vec<Donor>,
        figures_ns: Vec<u64>,
    }

    impl Plant {
        fn new(figures_ns: Vec<u64>, service: u32, donors: &[u32]) -> Self {
            let most = figures_ns.len() as u32;
            let donors = donors.iter().map(|cores| Donor { cores: *cores, least: 1, most: 64 }).collect();
            let controller = Controller::new(BOUNDS, 1, most, Patience::default());
            Self { controller, service, donors, figures_ns }
        }

        fn interval(&mut self) -> Step {
            let seen = Seen::Percentile(self.figures_ns[self.service as usize - 1]);
            let look = Look { seen, cores: self.service, donors: self.donors.clone() };
            let step = self.controller.decide(&look);
            match step {
                Step::Take(donor, _) => {
                    self.donors[donor].cores -= 1;
                    self.service += 1;
                }
                Step::Give(donor, _) => {
                    self.donors[donor].cores += 1;
                    self.service -= 1;
                }
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

    #[test]
    fn a_slow_service_gets_a_core_at_once_from_the_donor_with_the_most() {
        let mut plant = Plant::new(vec![9 * MS, 8 * MS, 3 * MS], 1, &[2, 4]);
        assert_eq!(plant.interval(), Step::Take(1, Reason::Above(9 * MS, 1)));
        assert_eq!(plant.interval(), Step::Stay(Reason::Settling));
        assert_eq!(plant.interval(), Step::Take(1, Reason::Above(8 * MS, 1)));
        assert_eq!(plant.moves(100), 0);
        assert_eq!(plant.service, 3);
    }

    #[test]
    fn a_fast_service_gives_a_core_later_to_the_donor_with_the_fewest() {
        let mut plant = Plant::new(vec![3 * MS, MS], 2, &[3, 1]);
        for times in 1..3 {
            assert_eq!(plant.interval(), Step::Stay(Reason::Below(MS, times)));
        }
        assert_eq!(plant.interval(), Step::Give(1, Reason::Below(MS, 3)));
        assert_eq!(plant.moves(100), 0);
    }

    #[test]
    fn no_requests_count_as_fast_and_few_requests_do_not_count() {
        let donors = vec![Donor { cores: 1, least: 1, most: 8 }];
        let mut controller = Controller::new(BOUNDS, 1, 4, Patience::default());
        let mut look = |seen| controller.decide(&Look { seen, cores: 2, donors: donors.clone() });
        assert_eq!(look(Seen::Nothing), Step::Stay(Reason::Below(0, 1)));
        assert_eq!(Reason::Below(0, 1).to_string(), "no requests, for 1 interval");
        assert!(Reason::HasLeast(0).to_string().starts_with("no requests, but"));
        assert_eq!(look(Seen::Nothing), Step::Stay(Reason::Below(0, 2)));
        assert_eq!(look(Seen::Little), Step::Stay(Reason::Little));
        assert_eq!(look(Seen::Nothing), Step::Give(0, Reason::Below(0, 3)));
    }

    #[test]
    fn limits_are_reasons() {
        let mut plant = Plant::new(vec![9 * MS], 1, &[4]);
        assert_eq!(plant.interval(), Step::Stay(Reason::HasMost(9 * MS)));
        let mut plant = Plant::new(vec![9 * MS, MS], 1, &[1]);
        assert_eq!(plant.interval(), Step::Stay(Reason::NoDonor(9 * MS)));
        let mut plant = Plant::new(vec![MS], 1, &[1]);
        assert_eq!(plant.interval(), Step::Stay(Reason::HasLeast(MS)));
    }

    #[test]
    fn a_failed_move_is_retried_later() {
        let mut controller = Controller::new(BOUNDS, 1, 4, Patience { settle: 0, ..Patience::default() });
        let donors = vec![Donor { cores: 4, least: 1, most: 8 }];
        let look = Look { seen: Seen::Percentile(9 * MS), cores: 1, donors };
        assert!(matches!(controller.decide(&look), Step::Take(..)));
        controller.failed();
        assert_eq!(controller.decide(&look), Step::Stay(Reason::Settling));
        assert!(matches!(controller.decide(&look), Step::Take(..)));
    }

    proptest! {
        #[test]
        fn limits_hold_for_all_figures(
            figures in proptest::collection::vec(0_u64..10 * MS, 1..200),
            (least, most) in (1_u32..4, 4_u32..8), donor_least in 0_u32..3,
        ) {
            let mut controller = Controller::new(BOUNDS, least, most, Patience::default());
            let mut donors = vec![Donor { cores: 4, least: donor_least, most: 6 }; 2];
            let mut service = least;
            let mut quiet = 1;
            for figure in figures {
                let look = Look { seen: Seen::Percentile(figure), cores: service, donors: donors.clone() };
                let step = controller.decide(&look);
                match step {
                    Step::Take(donor, _) => {
                        prop_assert!(figure > BOUNDS.upper_ns);
                        donors[donor].cores -= 1;
                        service += 1;
                    }
                    Step::Give(donor, _) => {
                        prop_assert!(figure < BOUNDS.lower_ns);
                        donors[donor].cores += 1;
                        service -= 1;
                    }
                    Step::Stay(_) => {
                        quiet += 1;
                        continue;
                    }
                }
                prop_assert!(quiet >= 1, "figures count again only when the service has settled");
                quiet = 0;
                prop_assert!((least..=most).contains(&service));
                prop_assert!(donors.iter().all(|donor| (donor_least.max(1)..=6).contains(&donor.cores)));
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
            let mut plant = Plant::new(figures, start, &[8, 8]);
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
            let mut plant = Plant::new(figures, start, &[8, 8]);
            // Moves to the count, then with ever longer pauses, then a give and a take per 3 * 2^6 intervals.
            let most = 7 + 2 * MOST_DOUBLINGS + 2 * 2_000 / (3 << MOST_DOUBLINGS) + 2;
            let moves = plant.moves(2_000);
            prop_assert!(moves <= most, "{moves} moves, {most} at most");
        }
    }
}
