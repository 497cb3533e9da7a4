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
