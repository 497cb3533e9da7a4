//! The texts that programs write to the files of a group.

use super::bandwidth::Quota;
use super::group::{Controller, Controllers};
use super::memory::UNLIMITED;
use crate::Errno;
use isola_user_mode::PAGE_SIZE;

/// Parses a number, or `max` as `None`.
///
/// # Errors
/// [`Errno::EINVAL`].
pub(super) fn number_or_max(text: &str) -> Result<Option<u64>, Errno> {
    match text.trim() {
        "max" => Ok(None),
        number => number.parse().map(Some).map_err(|_| Errno::EINVAL),
    }
}

/// Parses a number within limits.
///
/// # Errors
/// [`Errno::EINVAL`] if it is no number, [`Errno::ERANGE`] if it is out of range.
pub(super) fn number_in<T: core::str::FromStr + PartialOrd>(
    text: &str,
    least: T,
    most: T,
) -> Result<T, Errno> {
    let number: T = text.trim().parse().map_err(|_| Errno::EINVAL)?;
    if number < least || number > most { Err(Errno::ERANGE) } else { Ok(number) }
}

/// Parses a size in bytes, with a suffix K, M, G or T, or `max`. Returns frames, rounded down.
///
/// # Errors
/// [`Errno::EINVAL`].
pub(super) fn frames(text: &str) -> Result<u64, Errno> {
    let text = text.trim();
    if text == "max" {
        return Ok(UNLIMITED);
    }
    let shift = match text.bytes().last() {
        Some(b'K' | b'k') => 10,
        Some(b'M' | b'm') => 20,
        Some(b'G' | b'g') => 30,
        Some(b'T' | b't') => 40,
        _ => 0,
    };
    let digits = if shift > 0 { &text[..text.len() - 1] } else { text };
    let number: u64 = digits.parse().map_err(|_| Errno::EINVAL)?;
    Ok(number.checked_mul(1 << shift).ok_or(Errno::EINVAL)? / PAGE_SIZE)
}

/// Parses `cpu.max`: `QUOTA [PERIOD]`, in microseconds. `before` has the period that stays without another one.
///
/// # Errors
/// [`Errno::EINVAL`]: the period is from 1 ms to 1 s, the quota at least 1 ms.
pub(super) fn quota(text: &str, before: Option<Quota>) -> Result<Option<Quota>, Errno> {
    let mut words = text.split_whitespace();
    let quota_us = number_or_max(words.next().ok_or(Errno::EINVAL)?)?;
    let period_us = match words.next() {
        Some(word) => number_in(word, 1_000_u64, 1_000_000).map_err(|_| Errno::EINVAL)?,
        None => before.map_or(Quota::DEFAULT_PERIOD_NS, |quota| quota.period_ns) / 1_000,
    };
    if words.next().is_some() {
        return Err(Errno::EINVAL);
    }
    match quota_us {
        None => Ok(None),
        // Linux's upper limit is 2^44 us.
        Some(quota_us @ 1_000..=0xfff_ffff_ffff) => {
            Ok(Some(Quota { quota_ns: quota_us * 1_000, period_ns: period_us * 1_000 }))
        }
        Some(_) => Err(Errno::EINVAL),
    }
}

/// Parses `cgroup.subtree_control`: controllers with `+` or `-`.
///
/// # Errors
/// [`Errno::EINVAL`] for an unknown controller.
pub(super) fn controllers(text: &str, mut now: Controllers) -> Result<Controllers, Errno> {
    for word in text.split_whitespace() {
        let (is_in, name) = match (word.strip_prefix('+'), word.strip_prefix('-')) {
            (Some(name), _) => (true, name),
            (None, Some(name)) => (false, name),
            (None, None) => return Err(Errno::EINVAL),
        };
        let controller = Controller::ALL.into_iter().find(|controller| controller.name() == name);
        now = now.changed(controller.ok_or(Errno::EINVAL)?, is_in);
    }
    Ok(now)
}

/// Parses `io.weight`: `[default] WEIGHT`.
///
/// # Errors
/// [`Errno::EINVAL`] for the weight of a single device, [`Errno::ERANGE`].
pub(super) fn io_weight(text: &str) -> Result<u32, Errno> {
    let text = text.trim();
    number_in(text.strip_prefix("default").unwrap_or(text), 1, 10_000)
}

/// Parses `io.max`: `MAJOR:MINOR [rbps=N] [wbps=N]`. Returns the smaller of both limits, as the grid limits the sum.
///
/// # Errors
/// [`Errno::EINVAL`], also for limits of operations (`riops`, `wiops`) other than `max`.
pub(super) fn io_limit(text: &str) -> Result<Option<u64>, Errno> {
    let mut words = text.split_whitespace();
    let (major, minor) = words.next().and_then(|device| device.split_once(':')).ok_or(Errno::EINVAL)?;
    for number in [major, minor] {
        number.parse::<u32>().map_err(|_| Errno::EINVAL)?;
    }
    let mut limit: Option<u64> = None;
    for word in words {
        let (key, value) = word.split_once('=').ok_or(Errno::EINVAL)?;
        let value = number_or_max(value)?;
        match (key, value) {
            ("rbps" | "wbps", Some(0)) => return Err(Errno::EINVAL),
            ("rbps" | "wbps", Some(value)) => limit = Some(limit.map_or(value, |limit| limit.min(value))),
            ("rbps" | "wbps" | "riops" | "wiops", None) => {}
            _ => return Err(Errno::EINVAL),
        }
    }
    Ok(limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_rounded_to_frames() {
        assert_eq!(frames("max\n"), Ok(UNLIMITED));
        assert_eq!((frames("8191"), frames("16M\n"), frames("1k")), (Ok(1), Ok(4096), Ok(0)));
        for wrong in ["", "-1", "M", "1X", "99999999999T", "1 2"] {
            assert_eq!(frames(wrong), Err(Errno::EINVAL), "{wrong}");
        }
    }

    #[test]
    fn a_quota_keeps_its_period_unless_another_is_given() {
        let of =
            |quota_us: u64, period_us: u64| Quota { quota_ns: quota_us * 1000, period_ns: period_us * 1000 };
        assert_eq!(quota("50000\n", None), Ok(Some(of(50_000, 100_000))));
        assert_eq!(quota("2000 10000", None), Ok(Some(of(2_000, 10_000))));
        assert_eq!(quota("5000", Some(of(2_000, 10_000))), Ok(Some(of(5_000, 10_000))));
        assert_eq!(quota("max 10000", Some(of(2_000, 10_000))), Ok(None));
        for wrong in ["", "999", "1000 999", "1000 1000001", "x", "1000 2000 3000", "99999999999999999"] {
            assert_eq!(quota(wrong, None), Err(Errno::EINVAL), "{wrong}");
        }
    }

    #[test]
    fn controllers_are_added_and_removed() {
        let now = controllers("+cpu +memory\n", Controllers::default()).unwrap();
        assert!(now.contains(Controller::Cpu) && now.contains(Controller::Memory));
        let now = controllers("-cpu", now).unwrap();
        assert!(!now.contains(Controller::Cpu) && !now.is_empty());
        assert_eq!(controllers("cpu", now), Err(Errno::EINVAL));
        assert_eq!(controllers("+cpuset", now), Err(Errno::EINVAL));
    }

    #[test]
    fn limits_of_devices_are_in_bytes_per_second() {
        assert_eq!(io_limit("254:0 rbps=1000 wbps=500 riops=max"), Ok(Some(500)));
        assert_eq!(io_limit("254:0 rbps=max"), Ok(None));
        for wrong in ["", "254", "a:0", "254:0 rbps", "254:0 rbps=0", "254:0 riops=5", "254:0 x=max"] {
            assert_eq!(io_limit(wrong), Err(Errno::EINVAL), "{wrong}");
        }
        assert_eq!((io_weight("default 50\n"), io_weight("10000")), (Ok(50), Ok(10_000)));
        assert_eq!((io_weight("0"), io_weight("8:0 50")), (Err(Errno::ERANGE), Err(Errno::EINVAL)));
    }
}
