//! The tenants of the Linux guest in the group `grid`, as Isola's test image `tenants` has them, and the measurement of
//! their cgroups.
//!
//! ```text
//! linux-tenants read FILE                      opens the file, reads 32 KiB and closes it, in a loop
//! linux-tenants disk DEVICE BYTES THREADS      reads random blocks of the device, past the cache, on each thread
//! linux-tenants measure MS KEY FILE ...        prints the growth of each file's value of the key in so many ms, and the
//!                                              time in us
//! ```

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

/// The bytes that are read from a file at a time, as in Isola's image.
const READ: usize = 32 << 10;

/// The alignment of reads past the cache, in bytes.
const ALIGNMENT: usize = 4096;

/// The stack of a reading thread, in bytes.
const STACK: usize = 64 << 10;

/// `O_DIRECT` on x86-64: the read bypasses the cache.
const DIRECT: i32 = 0o40000;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["read", path] => read_files(path),
        ["disk", device, len, threads] => match (len.parse(), threads.parse()) {
            (Ok(len), Ok(threads)) => read_blocks(device, len, threads),
            _ => return usage(),
        },
        ["measure", ms, key, ref files @ ..] => match ms.parse() {
            Ok(ms) => measure(Duration::from_millis(ms), key, files),
            Err(_) => return usage(),
        },
        _ => return usage(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("linux-tenants: {error}");
            ExitCode::FAILURE
        }
    }
}

fn usage() -> ExitCode {
    eprintln!("usage: linux-tenants read FILE | disk DEVICE BYTES THREADS | measure MS KEY FILE ...");
    ExitCode::from(2)
}

/// Opens, reads and closes a file, until an error.
fn read_files(path: &str) -> std::io::Result<()> {
    let mut buffer = vec![0; READ];
    loop {
        File::open(path)?.read_exact(&mut buffer)?;
    }
}

/// Reads random blocks of `len` bytes from a device on each of `threads` threads, until an error.
fn read_blocks(device: &str, len: usize, threads: usize) -> std::io::Result<()> {
    let mut file = OpenOptions::new().read(true).custom_flags(DIRECT).open(device)?;
    let places = file.seek(SeekFrom::End(0))? / len as u64;
    let file = &file;
    thread::scope(|scope| {
        let readers = (0..threads).map(|_| {
            thread::Builder::new().stack_size(STACK).spawn_scoped(scope, move || {
                let mut memory = vec![0; len + ALIGNMENT];
                let start = memory.as_ptr().align_offset(ALIGNMENT);
                let buffer = &mut memory[start..start + len];
                loop {
                    file.read_exact_at(buffer, fastrand::u64(..places) * len as u64)?;
                }
            })
        });
        let readers = readers.collect::<std::io::Result<Vec<_>>>()?;
        readers.into_iter().try_for_each(|reader| reader.join().unwrap_or(Ok(())))
    })
}

/// Prints by how much the value of `key` in each file grows in a time, and that time in us.
fn measure(time: Duration, key: &str, files: &[&str]) -> std::io::Result<()> {
    let files = files.iter().map(File::open).collect::<std::io::Result<Vec<_>>>()?;
    let values = || -> std::io::Result<Vec<u64>> {
        let read = |file: &File| {
            let mut text = [0; 4096];
            let len = file.read_at(&mut text, 0)?;
            Ok(value(&String::from_utf8_lossy(&text[..len]), key))
        };
        files.iter().map(read).collect()
    };
    let (begin, before) = (Instant::now(), values()?);
    thread::sleep(time);
    let (elapsed, after) = (begin.elapsed(), values()?);
    let growth = before.iter().zip(&after).map(|(before, after)| (after - before).to_string());
    println!("guest: measured {} {}", growth.collect::<Vec<_>>().join(" "), elapsed.as_micros());
    Ok(())
}

/// Returns the number behind a key and a space or `=` in a file of a cgroup; 0 if it is not there.
fn value(text: &str, key: &str) -> u64 {
    let mut words = text.split([' ', '=', '\n']).skip_while(|word| *word != key);
    words.nth(1).and_then(|word| word.parse().ok()).unwrap_or(0)
}
