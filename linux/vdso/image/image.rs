//! The code of the vDSO. It runs in ring 3, in any program of a cell, on the program's stack.
//!
//! The functions have the results of the system calls with the same names: 0, or a negative error. They make the system
//! call if they do not know the clock, or the clock page says that the cycle counter cannot be used.
#![no_std]

mod page;

use core::arch::asm;
use core::ptr::{addr_of, read_volatile};
use core::sync::atomic::{Ordering, compiler_fence};
use page::ClockPage;

/// Nanoseconds of a second.
const SECOND: u64 = 1_000_000_000;

const CLOCK_GETTIME: u64 = 228;
const CLOCK_GETRES: u64 = 229;
const GETTIMEOFDAY: u64 = 96;
const TIME: u64 = 201;
const GETCPU: u64 = 309;

/// The clocks of a program that the clock page has (`CLOCK_*`).
const REALTIME: i32 = 0;
const MONOTONIC: i32 = 1;
const MONOTONIC_RAW: i32 = 4;
const REALTIME_COARSE: i32 = 5;
const MONOTONIC_COARSE: i32 = 6;
const BOOTTIME: i32 = 7;
const TAI: i32 = 11;

/// `struct timespec`, or `struct timeval`.
#[repr(C)]
pub struct Time {
    seconds: i64,
    parts: i64,
}

/// Returns the clock page.
#[inline(always)]
fn clock_page() -> *const ClockPage {
    let page: *const ClockPage;
    // SAFETY: the instruction only computes an address.
    unsafe {
        asm!(
            ".hidden __ehdr_start",
            "lea {}, [rip + __ehdr_start - 4096]",
            out(reg) page,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    page
}

/// Returns the cycle counter, after all earlier instructions.
#[inline(always)]
fn cycles() -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: the instructions only read the counter.
    unsafe {
        asm!("lfence", "rdtsc", out("eax") low, out("edx") high, options(nomem, nostack, preserves_flags));
    }
    u64::from(high) << 32 | u64::from(low)
}

/// Returns the monotonic clock and the time of day at its zero, in nanoseconds; `None` if the page cannot be used.
#[inline(always)]
fn now() -> Option<(u64, u64)> {
    let page = clock_page();
    loop {
        // SAFETY: the cell maps the page below the image in each process. It may change between two reads: the sequence
        // number shows that.
        let (first, copy, last, ns);
        unsafe {
            first = read_volatile(addr_of!((*page).sequence));
            compiler_fence(Ordering::Acquire);
            copy = ClockPage {
                sequence: first,
                is_usable: read_volatile(addr_of!((*page).is_usable)),
                zero_cycles: read_volatile(addr_of!((*page).zero_cycles)),
                ns_per_cycle: read_volatile(addr_of!((*page).ns_per_cycle)),
                unix_ns_at_zero: read_volatile(addr_of!((*page).unix_ns_at_zero)),
            };
            ns = copy.monotonic_ns(cycles());
            compiler_fence(Ordering::Acquire);
            last = read_volatile(addr_of!((*page).sequence));
        }
        if copy.is_usable == 0 {
            return None;
        }
        if first == last && first & 1 == 0 {
            return Some((ns, copy.unix_ns_at_zero));
        }
        core::hint::spin_loop();
    }
}

/// Makes a system call.
#[inline(always)]
fn call(number: u64, first: u64, second: u64, third: u64) -> i64 {
    let result: i64;
    // SAFETY: the calls of this file write only where the program's arguments say.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as i64 => result,
            in("rdi") first,
            in("rsi") second,
            in("rdx") third,
            out("rcx") _,
            out("r11") _,
            options(nostack)
        );
    }
    result
}

/// Writes a time; `unit` is the number of nanoseconds of a part.
///
/// # Safety
/// `place` is the program's, valid or not: an invalid address is a fault of the program, as in Linux's vDSO.
#[inline(always)]
unsafe fn write(place: *mut Time, ns: u64, unit: u64) {
    let time = Time { seconds: (ns / SECOND) as i64, parts: (ns % SECOND / unit) as i64 };
    // SAFETY: the caller's.
    unsafe { place.write(time) };
}

/// `clock_gettime`.
///
/// # Safety
/// As for the system call, but an invalid address is a fault.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __vdso_clock_gettime(clock: i32, time: *mut Time) -> i32 {
    let is_time_of_day = match clock {
        REALTIME | REALTIME_COARSE | TAI => true,
        MONOTONIC | MONOTONIC_RAW | MONOTONIC_COARSE | BOOTTIME => false,
        _ => return call(CLOCK_GETTIME, clock as u64, time as u64, 0) as i32,
    };
    let Some((ns, unix_ns)) = now() else {
        return call(CLOCK_GETTIME, clock as u64, time as u64, 0) as i32;
    };
    let ns = if is_time_of_day { ns.saturating_add(unix_ns) } else { ns };
    // SAFETY: the caller's.
    unsafe { write(time, ns, 1) };
    0
}

/// `clock_getres`.
///
/// # Safety
/// As [`__vdso_clock_gettime`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __vdso_clock_getres(clock: i32, resolution: *mut Time) -> i32 {
    match clock {
        REALTIME | REALTIME_COARSE | TAI | MONOTONIC | MONOTONIC_RAW | MONOTONIC_COARSE | BOOTTIME => {
            if !resolution.is_null() {
                // SAFETY: the caller's.
                unsafe { write(resolution, 1, 1) };
            }
            0
        }
        _ => call(CLOCK_GETRES, clock as u64, resolution as u64, 0) as i32,
    }
}

/// `gettimeofday`.
///
/// # Safety
/// As [`__vdso_clock_gettime`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __vdso_gettimeofday(time: *mut Time, zone: *mut u64) -> i32 {
    let Some((ns, unix_ns)) = now() else {
        return call(GETTIMEOFDAY, time as u64, zone as u64, 0) as i32;
    };
    // SAFETY: the caller's. A time zone has two words of 32 bits.
    unsafe {
        if !time.is_null() {
            write(time, ns.saturating_add(unix_ns), 1000);
        }
        if !zone.is_null() {
            zone.write_unaligned(0);
        }
    }
    0
}

/// `time`.
///
/// # Safety
/// As [`__vdso_clock_gettime`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __vdso_time(place: *mut i64) -> i64 {
    let Some((ns, unix_ns)) = now() else { return call(TIME, place as u64, 0, 0) };
    let seconds = (ns.saturating_add(unix_ns) / SECOND) as i64;
    if !place.is_null() {
        // SAFETY: the caller's.
        unsafe { place.write(seconds) };
    }
    seconds
}

/// `getcpu`. The core is not in a register that programs can read, so this makes the system call.
///
/// # Safety
/// As for the system call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __vdso_getcpu(core: *mut u32, node: *mut u32, unused: *mut u8) -> i32 {
    call(GETCPU, core as u64, node as u64, unused as u64) as i32
}
