//! What happened in a cell between two looks at it: the difference of counters that only grow.

use isola_abi::histogram::Distribution;
use isola_abi::id::CellId;
use isola_abi::management::CellInfo;

/// Which of a cell's figures is kept between the bounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Figure {
    /// What its requests took, as the application counts them.
    #[default]
    Requests,
    /// How long its events waited until they ran, on any of its cores.
    Queueing,
}

/// Fewer requests than these have no 99th percentile worth the name: the window goes on until there are as many.
const LEAST: u64 = 100;

/// So many looks in a row it may go on. Then the slowest of the few is judged: a service that hardly anybody asks has an end of
/// its window as well, and gives its cores back.
const MOST_LOOKS: u32 = 10;

/// The figures of a cell from one look to the next.
#[derive(Clone, Debug, Default)]
pub struct Window {
    figure: Figure,
    /// The cell and its counters at the beginning.
    begin: Option<(CellId, Distribution)>,
    /// Looks since then that saw too little.
    looks: u32,
}

/// What a window showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Nothing happened.
    Nothing,
    /// Too little to be judged: the window goes on.
    Little,
    /// This, in cycles.
    Percentile(u64),
}

impl Window {
    /// A window on this figure, which begins at the first look.
    pub fn new(figure: Figure) -> Self {
        Self { figure, begin: None, looks: 0 }
    }

    /// Looks at a cell, at its 99th percentile say: 990 of 1000.
    pub fn look(&mut self, cell: &CellInfo, per_mille: u32) -> Seen {
        let now = self.counters(cell);
        let Some((_, begin)) = self.begin.take_if(|(id, _)| *id == cell.id) else {
            self.begin(cell);
            return Seen::Little;
        };
        let seen = now.since(&begin);
        let count = seen.count();
        if (1..LEAST).contains(&count) && self.looks < MOST_LOOKS {
            self.begin = Some((cell.id, begin));
            self.looks += 1;
            return Seen::Little;
        }
        self.begin = Some((cell.id, now));
        self.looks = 0;
        seen.quantile(per_mille).map_or(Seen::Nothing, Seen::Percentile)
    }

    /// Forgets what was seen so far: as after a move, which makes it past.
    pub fn begin(&mut self, cell: &CellInfo) {
        self.begin = Some((cell.id, self.counters(cell)));
        self.looks = 0;
    }

    fn counters(&self, cell: &CellInfo) -> Distribution {
        match self.figure {
            Figure::Requests => cell.service.clone(),
            Figure::Queueing => cell.cores.iter().fold(Distribution::default(), |mut all, core| {
                all.add(&core.queueing);
                all
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_data::cell;
    use isola_abi::histogram::Histogram;

    fn at(histogram: &Histogram) -> CellInfo {
        CellInfo { service: histogram.read(), ..cell("kv") }
    }

    #[test]
    fn a_window_shows_what_came_since_the_last_and_not_all_that_ever_came() {
        let (histogram, mut window) = (Histogram::new(), Window::new(Figure::Requests));
        histogram.count(1 << 30, 1_000_000);
        assert_eq!(window.look(&at(&histogram), 990), Seen::Little);
        histogram.count(1 << 20, 1_000);
        let Seen::Percentile(cycles) = window.look(&at(&histogram), 990) else { panic!("1000 are enough") };
        assert!(cycles < 2 << 20, "{cycles}");
        assert_eq!(window.look(&at(&histogram), 990), Seen::Nothing);
    }

    #[test]
    fn a_window_in_which_little_came_goes_on() {
        let (histogram, mut window) = (Histogram::new(), Window::new(Figure::Requests));
        window.begin(&at(&histogram));
        for turn in 0..3 {
            histogram.count(1 << 20, 40);
            assert_eq!(matches!(window.look(&at(&histogram), 990), Seen::Percentile(_)), turn == 2);
        }
    }

    #[test]
    fn a_window_in_which_little_comes_for_long_is_judged_by_that() {
        let (histogram, mut window) = (Histogram::new(), Window::new(Figure::Requests));
        window.begin(&at(&histogram));
        for _ in 0..2 {
            let little = (0..MOST_LOOKS).all(|_| {
                histogram.count(1 << 20, 1);
                window.look(&at(&histogram), 990) == Seen::Little
            });
            histogram.count(1 << 20, 1);
            assert!(little && matches!(window.look(&at(&histogram), 990), Seen::Percentile(_)));
        }
    }

    #[test]
    fn another_cell_of_the_name_begins_a_window_of_its_own() {
        let (histogram, mut window) = (Histogram::new(), Window::new(Figure::Requests));
        window.begin(&at(&histogram));
        histogram.count(1 << 20, 1_000);
        let other = CellInfo { id: CellId(77), ..at(&histogram) };
        assert_eq!(window.look(&other, 990), Seen::Little);
        assert_eq!(window.look(&other, 990), Seen::Nothing);
    }
}
