//! Median and spread of several runs.

/// Returns the median of `values`; the mean of the two middle ones for an even number, 0 for none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        len if len % 2 == 1 => sorted[len / 2],
        len => f64::midpoint(sorted[len / 2 - 1], sorted[len / 2]),
    }
}

/// Returns the difference of the largest and the smallest of `values`, as a fraction of their median; `None` with fewer
/// than two.
pub fn spread(values: &[f64]) -> Option<f64> {
    if values.len() < 2 {
        return None;
    }
    let smallest = values.iter().copied().reduce(f64::min).unwrap_or_default();
    let largest = values.iter().copied().reduce(f64::max).unwrap_or_default();
    let middle = median(values);
    Some(if middle == 0.0 { 0.0 } else { (largest - smallest) / middle })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_does_not_depend_on_the_order() {
        assert_eq!(median(&[3.0, 1.0, 100.0]), 3.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 100.0]), 3.0);
        assert_eq!(median(&[7.0]), 7.0);
        assert_eq!(median(&[]), 0.0);
    }

    #[test]
    fn the_spread_is_a_fraction_of_the_median() {
        assert_eq!(spread(&[8.0, 12.0, 10.0]), Some(0.4));
        assert_eq!(spread(&[0.0, 0.0]), Some(0.0));
        assert_eq!(spread(&[5.0]), None, "one value has no spread");
        assert_eq!(spread(&[]), None);
    }
}
