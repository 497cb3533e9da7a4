//! The cores that execute threads, and the load averages.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use spin::Mutex;

/// The most cores of a cell.
pub const MOST_CORES: usize = 64;

/// The loads of a cell's cores.
#[derive(Debug)]
pub struct CoreLoads {
    cores: [CoreLoad; MOST_CORES],
    averages: Mutex<Averages>,
}

/// In a cache line of its own, as its core writes it at each poll of a thread.
#[derive(Debug, Default)]
#[repr(align(64))]
struct CoreLoad {
    runs_thread: AtomicBool,
    turns: AtomicU64,
}

/// The load averages of 1, 5 and 15 minutes, as Linux computes them: exponential, with a sample each 5 seconds. A sample is
/// taken when the averages are read, and counts for the time since the last one: the cell needs no timer.
#[derive(Debug, Default)]
struct Averages {
    loads: [f64; 3],
    sampled_ns: u64,
}

/// The minutes of the averages.
const MINUTES: [f64; 3] = [1.0, 5.0, 15.0];

/// The least time between two samples, in nanoseconds.
const SAMPLE_NS: u64 = 5_000_000_000;

impl Default for CoreLoads {
    fn default() -> Self {
        Self { cores: core::array::from_fn(|_| CoreLoad::default()), averages: Mutex::default() }
    }
}

impl CoreLoads {
    /// Records that a core begins or ends to execute a thread.
    #[inline]
    pub fn set_runs_thread(&self, core: usize, runs: bool) {
        if let Some(load) = self.cores.get(core) {
            load.runs_thread.store(runs, Ordering::Relaxed);
            if runs {
                load.turns.store(load.turns.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            }
        }
    }

    /// Returns whether a core executes a thread.
    pub fn runs_thread(&self, core: usize) -> bool {
        self.cores.get(core).is_some_and(|load| load.runs_thread.load(Ordering::Relaxed))
    }

    /// Returns how often cores began to execute a thread.
    pub fn turns(&self) -> u64 {
        self.cores.iter().map(|load| load.turns.load(Ordering::Relaxed)).sum()
    }

    /// Returns a core with nothing to do among these that are halted or execute a program, a bit for each.
    pub fn idle_core(&self, halted: u64) -> Option<usize> {
        let mut left = halted;
        while left != 0 {
            let core = left.trailing_zeros() as usize;
            if !self.runs_thread(core) {
                return Some(core);
            }
            left &= left - 1;
        }
        None
    }

    /// Returns the load averages, in hundredths, after a sample of the threads that run or wait for a core.
    pub fn averages(&self, runnable: usize, now_ns: u64) -> [u64; 3] {
        let mut averages = self.averages.lock();
        let elapsed_ns = now_ns.saturating_sub(averages.sampled_ns);
        if elapsed_ns >= SAMPLE_NS {
            averages.sampled_ns = now_ns;
            for (load, minutes) in averages.loads.iter_mut().zip(MINUTES) {
                let kept = power_of_half(elapsed_ns as f64 / (minutes * 60.0e9 * core::f64::consts::LN_2));
                *load = *load * kept + runnable as f64 * (1.0 - kept);
            }
        }
        averages.loads.map(|load| (load * 100.0 + 0.5) as u64)
    }
}

/// Returns 2 to the power of `-exponent`: the processor's own instructions for this need the standard library.
fn power_of_half(exponent: f64) -> f64 {
    let whole = exponent as u64;
    if whole >= 60 {
        return 0.0;
    }
    // The series of e^-x, x below 0.7: eight terms are exact to 10^-7.
    let x = (exponent - whole as f64) * core::f64::consts::LN_2;
    let (mut term, mut sum) = (1.0, 1.0);
    for step in 1..9 {
        term *= -x / f64::from(step);
        sum += term;
    }
    sum / (1_u64 << whole) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn averages_approach_the_number_of_runnable_threads() {
        let loads = CoreLoads::default();
        let minute = 60_000_000_000;
        assert_eq!(loads.averages(4, 1_000_000_000), [0, 0, 0], "no sample yet");
        let [one, five, fifteen] = loads.averages(4, minute);
        // 4 * (1 - 1/e), and so on.
        assert!((252..=254).contains(&one) && (71..=74).contains(&five) && (25..=27).contains(&fifteen));
        assert_eq!(loads.averages(4, 600 * minute), [400, 400, 400]);
        assert_eq!(loads.averages(0, 605 * minute)[0], 3, "4 / e^5");
    }

    #[test]
    fn a_core_that_executes_a_thread_is_not_idle_although_it_is_in_ring_3() {
        let loads = CoreLoads::default();
        loads.set_runs_thread(0, true);
        assert_eq!((loads.idle_core(0b101), loads.idle_core(0b001), loads.turns()), (Some(2), None, 1));
        loads.set_runs_thread(0, false);
        assert_eq!(loads.idle_core(0b101), Some(0));
    }
}
