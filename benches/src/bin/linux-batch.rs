//! The batch job of the Linux guest: the same work as Isola's `primes batch`, on threads. `linux-batch NUMBER THREADS`
//! counts the primes below the number, prints the time in us, and ends.

use isola_primes::job::Job;
use std::process::ExitCode;
use std::thread;
use std::time::Instant;

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1).map(|word| word.parse::<u64>().ok());
    let (Some(Some(number)), Some(Some(threads))) = (words.next(), words.next()) else {
        eprintln!("usage: linux-batch NUMBER THREADS");
        return ExitCode::from(2);
    };
    let (begin, job) = (Instant::now(), Job::new(number));
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut counter = job.counter();
                while job.step(&mut counter) {}
            });
        }
    });
    println!("batch: {} primes below {number}", job.found());
    println!("batch: us {}", begin.elapsed().as_micros());
    ExitCode::SUCCESS
}
