//! The contents that a power failure can leave.

use crate::Logged;

/// Calls `check` with the contents after each number of writes in the order of the log, the writes before it included
/// and all later ones lost: one call more than there are writes. The number is that of entries of the log.
pub fn at_every_write(base: &[u8], log: &[Logged], mut check: impl FnMut(usize, &[u8])) {
    let mut contents = base.to_vec();
    check(0, &contents);
    for (index, entry) in log.iter().enumerate() {
        if let Logged::Write { at, bytes } = entry {
            contents[*at..*at + bytes.len()].copy_from_slice(bytes);
            check(index + 1, &contents);
        }
    }
}

/// Calls `check` with contents in which random writes since the latest flush are missing: `tries` times for each flush
/// of the log, and for its end. Each logged write is divided into blocks of `atom` bytes, which are written or not.
pub fn with_random_losses(
    base: &[u8],
    log: &[Logged],
    atom: usize,
    tries: usize,
    seed: u64,
    mut check: impl FnMut(usize, &[u8]),
) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut permanent = base.to_vec();
    let mut since: Vec<(usize, &[u8])> = Vec::new();
    for (index, entry) in log.iter().enumerate() {
        match entry {
            Logged::Write { at, bytes } => {
                let atoms = bytes.chunks(atom).enumerate();
                since.extend(atoms.map(|(part, bytes)| (at + part * atom, bytes)));
            }
            Logged::Flush => {
                try_losses(&permanent, &since, tries, &mut random, |contents| check(index, contents));
                for (at, bytes) in since.drain(..) {
                    permanent[at..at + bytes.len()].copy_from_slice(bytes);
                }
            }
        }
    }
    try_losses(&permanent, &since, tries, &mut random, |contents| check(log.len(), contents));
}

fn try_losses(
    permanent: &[u8],
    since: &[(usize, &[u8])],
    tries: usize,
    random: &mut fastrand::Rng,
    mut check: impl FnMut(&[u8]),
) {
    for _ in 0..tries {
        let mut contents = permanent.to_vec();
        for (at, bytes) in since {
            if random.bool() {
                contents[*at..*at + bytes.len()].copy_from_slice(bytes);
            }
        }
        check(&contents);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(at: usize, byte: u8) -> Logged {
        Logged::Write { at, bytes: vec![byte; 2] }
    }

    #[test]
    fn every_prefix_of_the_writes_is_one_cut() {
        let log = [write(0, 1), Logged::Flush, write(2, 2)];
        let mut cuts = Vec::new();
        at_every_write(&[0; 4], &log, |position, contents| cuts.push((position, contents.to_vec())));
        assert_eq!(cuts, [(0, vec![0, 0, 0, 0]), (1, vec![1, 1, 0, 0]), (3, vec![1, 1, 2, 2])]);
    }

    #[test]
    fn any_piece_since_the_latest_flush_can_be_lost_and_none_before_it() {
        let log = [write(0, 1), Logged::Flush, write(2, 2)];
        let mut last = std::collections::BTreeSet::new();
        with_random_losses(&[0; 4], &log, 1, 100, 1, |position, contents| {
            if position == log.len() {
                last.insert(contents.to_vec());
            }
        });
        let all = [[1, 1, 0, 0], [1, 1, 0, 2], [1, 1, 2, 0], [1, 1, 2, 2]];
        assert!(last.iter().eq(all.iter()), "{last:?}");
    }
}
