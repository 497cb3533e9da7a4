//! How busy the host is with other work while no machine of ours runs: times count only where it is quiet.

use crate::error::BenchError;
use crate::interrupt;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

/// How long one sample of the host's load takes.
const LOOK: Duration = Duration::from_secs(1);

/// A run that will be published waits at most this long for a quiet host.
const LONGEST_WAIT: Duration = Duration::from_secs(120);

/// Other work may take so much of the host's processors, in percent, where figures are to be published.
pub const MOST_BUSY_PERCENT: f64 = 5.0;

/// How much of all processors' time is taken now, in percent. Takes a second; nothing of ours may run meanwhile.
///
/// # Errors
/// [`BenchError::File`] where Linux does not say, [`BenchError::Interrupted`].
pub fn busy_percent() -> Result<f64, BenchError> {
    let read = || fs::read_to_string("/proc/stat").map_err(BenchError::file("/proc/stat"));
    let before = read()?;
    thread::sleep(LOOK);
    interrupt::check()?;
    Ok(between(&before, &read()?))
}

/// Samples the host's load until other work takes no more than [`MOST_BUSY_PERCENT`], for at most two minutes. Returns
/// the last sample.
///
/// # Errors
/// As [`busy_percent`].
pub fn wait_until_quiet() -> Result<f64, BenchError> {
    let start = Instant::now();
    loop {
        let percent = busy_percent()?;
        if percent <= MOST_BUSY_PERCENT || start.elapsed() > LONGEST_WAIT {
            return Ok(percent);
        }
    }
}

/// Fails where other work takes too much of the host.
///
/// # Errors
/// [`BenchError::HostBusy`].
pub fn demand_quiet(busy_percent: impl IntoIterator<Item = f64>) -> Result<(), BenchError> {
    let most = busy_percent.into_iter().fold(0.0, f64::max);
    if most <= MOST_BUSY_PERCENT {
        Ok(())
    } else {
        Err(BenchError::HostBusy { percent: most.round(), limit: MOST_BUSY_PERCENT })
    }
}

/// The part of processor time between two readings of `/proc/stat` that was not idle, in percent.
fn between(before: &str, after: &str) -> f64 {
    let (before, after) = (ticks(before), ticks(after));
    let all = after.0.saturating_sub(before.0);
    let idle = after.1.saturating_sub(before.1);
    if all == 0 { 100.0 } else { 100.0 * all.saturating_sub(idle) as f64 / all as f64 }
}

/// Ticks of all processors in `/proc/stat`, and those of them that were idle or waited for a disk (proc(5)).
fn ticks(stat: &str) -> (u64, u64) {
    let line = stat.lines().next().and_then(|line| line.strip_prefix("cpu ")).unwrap_or_default();
    // The time of guests, from the ninth field on, is in user time as well.
    let fields: Vec<u64> = line.split_ascii_whitespace().take(8).flat_map(str::parse).collect();
    (fields.iter().sum(), fields.iter().skip(3).take(2).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_idle_is_busy() {
        let before = "cpu  100 0 100 1000 50 0 0 0 70 0\ncpu0 1 1 1 1\n";
        let after = "cpu  130 5 110 1100 55 0 0 5 99 0\ncpu0 1 1 1 1\n";
        // 155 ticks went by, of which 105 were idle.
        assert!((between(before, after) - 100.0 * 50.0 / 155.0).abs() < 1e-9);
        assert_eq!(between(before, before), 100.0, "no ticks: nothing is known");
        assert_eq!(between("", ""), 100.0);
    }

    #[test]
    fn a_busy_host_takes_no_figures_to_publish() {
        assert!(demand_quiet([0.0, MOST_BUSY_PERCENT]).is_ok() && demand_quiet([]).is_ok());
        let error = demand_quiet([0.0, 37.4, 5.0]).unwrap_err().to_string();
        assert!(error.contains("37 %") && error.contains("5 %"), "{error}");
    }
}
