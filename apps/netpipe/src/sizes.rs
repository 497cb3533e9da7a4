//! The measured sizes: powers of two, the midpoints between them, and sizes a few bytes above and below, which reveal
//! code that is fast for round sizes only.

use alloc::vec::Vec;

/// The maximum size of a message, in bytes.
pub const MAX_SIZE: usize = 8 << 20;

/// The distance of the sizes above and below a base size, in bytes.
const PERTURBATION: usize = 3;

/// Returns all sizes from 1 to `most`, in ascending order.
pub fn sizes(most: usize) -> Vec<usize> {
    let most = most.min(MAX_SIZE);
    let bases = (0..usize::BITS - 1).flat_map(|power| [1 << power, (1 << power) + (1 << power) / 2]);
    let bases = bases.take_while(|base| *base <= most);
    // For small bases the perturbed sizes would coincide with other bases.
    let around = |base: usize| if base > 4 * PERTURBATION { PERTURBATION } else { 0 };
    let mut all: Vec<usize> = bases
        .flat_map(|base| [base - around(base), base, base + around(base)])
        .filter(|size| *size <= most)
        .collect();
    all.sort_unstable();
    all.dedup();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_ascend_from_one_byte_to_the_maximum() {
        assert_eq!(
            sizes(70),
            [1, 2, 3, 4, 6, 8, 12, 13, 16, 19, 21, 24, 27, 29, 32, 35, 45, 48, 51, 61, 64, 67]
        );
        let all = sizes(usize::MAX);
        assert_eq!((all[0], *all.last().unwrap()), (1, MAX_SIZE));
        assert!(all.is_sorted_by(|one, next| one < next) && all.len() < 150);
        assert!(all.contains(&((1 << 20) + 3)) && all.contains(&((1 << 20) - 3)));
        assert_eq!(sizes(0), []);
    }
}
