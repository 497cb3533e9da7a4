//! The time of day, from the battery-backed clock of PCs (Motorola MC146818), to the second. The clock is taken to show
//! UTC, as that of virtual machines does.

use crate::port;

const INDEX: u16 = 0x70;
const DATA: u16 = 0x71;

const STATUS_A: u8 = 0x0a;
const STATUS_B: u8 = 0x0b;
const UPDATING: u8 = 0x80;
const BINARY: u8 = 0x04;
const HOURS_24: u8 = 0x02;
const AFTERNOON: u8 = 0x80;

/// Seconds, minutes, hours, day of the month, month, year.
const FIELDS: [u8; 6] = [0x00, 0x02, 0x04, 0x07, 0x08, 0x09];

/// Attempts of a reading while the clock is being updated.
const TRIES: usize = 1000;

/// Returns the nanoseconds since 1970-01-01 UTC; `None` if there is no such clock, or its fields are invalid.
pub(super) fn read() -> Option<u64> {
    for _ in 0..TRIES {
        let fields = FIELDS.map(register);
        let stable = register(STATUS_A) & UPDATING == 0 && FIELDS.map(register) == fields;
        if stable {
            return unix_ns(fields, register(STATUS_B));
        }
    }
    None
}

fn register(index: u8) -> u8 {
    // SAFETY: the clock has no access to memory. Bit 7 of the index is 0, so non-maskable interrupts stay enabled.
    unsafe {
        port::write_u8(INDEX, index);
        port::read_u8(DATA)
    }
}

/// Converts the fields, encoded as `status` says.
fn unix_ns(fields: [u8; 6], status: u8) -> Option<u64> {
    let afternoon = status & HOURS_24 == 0 && fields[2] & AFTERNOON != 0;
    let mut fields = fields;
    if status & HOURS_24 == 0 {
        fields[2] &= !AFTERNOON;
    }
    let [second, minute, hour, day, month, year] = fields
        .map(|field| u64::from(if status & BINARY == 0 { (field >> 4) * 10 + (field & 15) } else { field }));
    let hour = match (status & HOURS_24, hour) {
        (0, 12) => 12 * u64::from(afternoon),
        (0, _) => hour + 12 * u64::from(afternoon),
        _ => hour,
    };
    if second > 59
        || minute > 59
        || hour > 23
        || !(1..=31).contains(&day)
        || !(1..=12).contains(&month)
        || year > 99
    {
        return None;
    }
    let seconds = ((days_since_1970(2000 + year, month, day) * 24 + hour) * 60 + minute) * 60 + second;
    Some(seconds * 1_000_000_000)
}

/// Returns the days from 1970-01-01 to a day of the Gregorian calendar. Years begin in March here, so that the leap day
/// is a year's last day.
fn days_since_1970(year: u64, month: u64, day: u64) -> u64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let to_march = year * 365 + year / 4 - year / 100 + year / 400;
    let to_month = (153 * month + 2) / 5;
    to_march + to_month + day - 1 - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_since_1970_match_known_dates() {
        assert_eq!(days_since_1970(1970, 1, 1), 0);
        assert_eq!(days_since_1970(2000, 2, 29), 11_016);
        assert_eq!(days_since_1970(2000, 3, 1), 11_017);
        assert_eq!(days_since_1970(2026, 11, 5), 20_762);
    }

    #[test]
    fn all_encodings_give_the_same_time() {
        let expected = Some((20_762 * 86_400 + 15 * 3600 + 30 * 60 + 59) * 1_000_000_000);
        assert_eq!(unix_ns([0x59, 0x30, 0x15, 0x05, 0x11, 0x26], HOURS_24), expected);
        assert_eq!(unix_ns([59, 30, 15, 5, 11, 26], HOURS_24 | BINARY), expected);
        assert_eq!(unix_ns([0x59, 0x30, 0x83, 0x05, 0x11, 0x26], 0), expected);
        let midnight = Some(20_762 * 86_400 * 1_000_000_000);
        assert_eq!(unix_ns([0, 0, 0x12, 0x05, 0x11, 0x26], 0), midnight);
    }

    #[test]
    fn an_absent_clock_gives_no_time() {
        assert_eq!(unix_ns([0xff; 6], 0xff), None);
        assert_eq!(unix_ns([0; 6], HOURS_24), None);
    }
}
