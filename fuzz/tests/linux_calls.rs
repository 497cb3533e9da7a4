//! Hostile Linux programs: many of them, and the memory of the cell that runs them.

use isola_fuzz::linux_calls::calls;

/// Programs in each run of the test. `ISOLA_CASES` sets another number.
const PROGRAMS: u64 = 1_500;
/// The length of each program's input, at most.
const MOST_INPUT: usize = 1_500;
/// The most memory of a cell that runs one of these programs, in bytes. Its limits permit 8 MiB for pages, and three file
/// systems of 1 MiB.
const MOST_MEMORY: u64 = 64 << 20;

#[test]
fn hostile_programs_neither_harm_a_cell_nor_keep_memory() {
    let cases = std::env::var("ISOLA_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(PROGRAMS);
    // What is created once is no loss.
    calls(&[244, 0, 0]);
    let first = std::env::var("ISOLA_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0);
    for seed in first..first + cases {
        let mut random = fastrand::Rng::with_seed(seed);
        let input: Vec<u8> = (0..random.usize(1..MOST_INPUT)).map(|_| random.u8(..)).collect();
        println!("seed {seed}");
        let used = allocation_counter::measure(|| calls(&input));
        assert!(used.bytes_max < MOST_MEMORY, "seed {seed}: {used:?}");
        // A list of the whole process that has grown once does not grow again.
        let lost =
            used.count_current != 0 && allocation_counter::measure(|| calls(&input)).count_current != 0;
        assert!(!lost, "seed {seed}: memory is lost: {used:?}");
    }
}
