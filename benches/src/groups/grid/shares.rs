//! Shares of what was divided, and their deviation from the entitlements.

/// The weights of the three tenants in the experiments (Vortex, 4.1 to 4.3), which are percentages.
pub const WEIGHTS: [u32; 3] = [50, 33, 17];

/// Equal weights, as a control.
pub const EQUAL: [u32; 3] = [100; 3];

/// Returns the greatest deviation of a share of what all have used from the share of its weight, in percentage points.
/// If nothing was used, no activity received a share: 100.
pub fn deviation(used: [f64; 3], weights: [u32; 3]) -> f64 {
    let all: f64 = used.iter().sum();
    if all <= 0.0 {
        return 100.0;
    }
    let weight: u32 = weights.iter().sum();
    let of_one =
        |(used, own): (f64, u32)| (100.0 * used / all - 100.0 * f64::from(own) / f64::from(weight)).abs();
    used.into_iter().zip(weights).map(of_one).fold(0.0, f64::max)
}

/// Returns a part of a whole in percent; 0 of nothing.
pub fn percent(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { 100.0 * part / whole } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_greatest_deviation_counts_in_either_direction() {
        assert_eq!(deviation([500.0, 330.0, 170.0], WEIGHTS), 0.0);
        // 52, 33 and 15 %: two points too many, and two too few.
        assert!((deviation([52.0, 33.0, 15.0], WEIGHTS) - 2.0).abs() < 1e-9);
        assert!((deviation([50.0, 30.0, 20.0], WEIGHTS) - 3.0).abs() < 1e-9);
        assert!(deviation([7.0, 7.0, 7.0], EQUAL) < 1e-9);
        assert!((deviation([1.0, 1.0, 1.0], WEIGHTS) - 50.0 / 3.0).abs() < 1e-9);
    }

    #[test]
    fn without_use_there_is_no_share() {
        assert_eq!(deviation([0.0; 3], WEIGHTS), 100.0);
        assert_eq!(percent(1.0, 0.0), 0.0);
        assert_eq!(percent(1.0, 4.0), 25.0);
    }
}
