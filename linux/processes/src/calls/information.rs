//! Facts of the system, and random numbers.

use super::{CallResult, unsupported};
use crate::Errno;
use crate::thread::Thread;
use alloc::string::String;
use core::sync::atomic::Ordering;
use isola_linux_abi::numbers::{GRND_INSECURE, GRND_NONBLOCK, GRND_RANDOM};
use isola_user_mode::Access;

/// The version of Linux whose interface this is, for programs that check it.
pub const RELEASE: &str = "6.1.0-isola";
/// The text that `uname -v` prints.
pub const VERSION: &str = concat!("Isola ", env!("CARGO_PKG_VERSION"));

/// The length of a field of `struct utsname`.
const FIELD: usize = 65;

pub async fn uname(thread: &mut Thread, buffer: u64) -> CallResult {
    let host_name = thread.system.host_name.lock().clone();
    let mut bytes = [0; 6 * FIELD];
    let fields = ["Linux", &host_name, RELEASE, VERSION, "x86_64", "(none)"];
    for (place, field) in bytes.chunks_exact_mut(FIELD).zip(fields) {
        let len = field.len().min(FIELD - 1);
        place[..len].copy_from_slice(&field.as_bytes()[..len]);
    }
    thread.memory.write_bytes(buffer, &bytes).await?;
    Ok(0)
}

pub async fn sethostname(thread: &mut Thread, name: u64, len: u64) -> CallResult {
    if !thread.credentials.has(isola_linux_abi::numbers::CAP_SYS_ADMIN) {
        return Err(Errno::EPERM);
    }
    if len >= FIELD as u64 {
        return Err(Errno::EINVAL);
    }
    let mut bytes = alloc::vec![0; len as usize];
    thread.memory.read_to(name, &mut bytes).await?;
    *thread.system.host_name.lock() = String::from_utf8_lossy(&bytes).into_owned();
    Ok(0)
}

/// Calls that only the machine's administrator could make. As in a container, no process may.
pub fn administration(thread: &mut Thread) -> CallResult {
    Err(unsupported(thread, "administration of mounts, swap, devices or the machine", Errno::EPERM))
}

pub async fn sysinfo(thread: &mut Thread, buffer: u64) -> CallResult {
    let (total, free) = thread.system.environment.memory();
    let mut bytes = [0; 112];
    let mut put = |at: usize, word: u64| bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
    put(0, thread.system.environment.monotonic_ns() / super::time::SECOND);
    put(32, total);
    put(40, free);
    let processes = thread.system.family.lock().processes().count() as u16;
    // In units of 2^-16.
    for (index, hundredths) in crate::proc::load_averages(&thread.system).into_iter().enumerate() {
        put(8 + 8 * index, hundredths * 65_536 / 100);
    }
    bytes[80..82].copy_from_slice(&processes.to_le_bytes());
    bytes[104..108].copy_from_slice(&1_u32.to_le_bytes());
    thread.memory.write_bytes(buffer, &bytes).await?;
    Ok(0)
}

pub async fn getrandom(thread: &mut Thread, buffer: u64, len: u64, flags: u32) -> CallResult {
    if flags & !(GRND_NONBLOCK | GRND_RANDOM | GRND_INSECURE) != 0
        || flags & (GRND_RANDOM | GRND_INSECURE) == GRND_RANDOM | GRND_INSECURE
    {
        return Err(Errno::EINVAL);
    }
    let mut buffer = thread.memory.buffer(buffer, len, Access::Write).await?;
    let mut done = 0;
    while !buffer.is_empty() {
        done += buffer.write(&thread.system.environment.random().to_le_bytes());
    }
    Ok(done as u64)
}

pub fn personality(thread: &mut Thread, persona: u32) -> CallResult {
    /// The value that only asks.
    const QUERY: u32 = u32::MAX;
    /// `ADDR_NO_RANDOMIZE`: debuggers set it for their programs.
    const FIXED_ADDRESSES: u32 = 0x4_0000;
    let is_fixed = &thread.process.has_fixed_addresses;
    let before = match persona {
        QUERY => is_fixed.load(Ordering::Relaxed),
        0 | FIXED_ADDRESSES => is_fixed.swap(persona != 0, Ordering::Relaxed),
        _ => return Err(unsupported(thread, &alloc::format!("personality {persona:#x}"), Errno::EINVAL)),
    };
    Ok(if before { FIXED_ADDRESSES.into() } else { 0 })
}
