//! Waiting for events of several files: `poll`, `select`, `epoll`.

use super::descriptors::install;
use crate::Errno;
use crate::calls::signals::{replace_mask, restore_mask};
use crate::calls::time::read_timespec;
use crate::calls::{AtOnce, CallResult, PAGE};
use crate::signals::SignalSet;
use crate::thread::{Interrupted, Restart, Thread};
use alloc::sync::Arc;
use alloc::vec::Vec;
use isola_linux_abi::numbers::{
    EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, POLLPRI,
};
use isola_linux_files::{Epoll, EpollEvent, Events, OpenFile, PollEntry, poll_files, ready_files};
use isola_user_mode::Access;

/// The most entries of `poll`, beside the limit of descriptors.
const MOST_ENTRIES: usize = 1 << 16;
/// Length of `struct pollfd`: descriptor, events, events that are true.
const POLL_LEN: usize = 8;
/// The most entries of a `poll` that is served at once.
const FEW_ENTRIES: usize = 16;
/// The most descriptors of `select`.
const MOST_SELECTED: usize = 1024;
/// The most events that `epoll_wait` returns at once.
const MOST_EVENTS: usize = 1 << 16;

/// Waits until an entry is ready, or a time of the monotonic clock. Returns the events of each entry.
async fn wait_for(
    thread: &Thread,
    entries: &[PollEntry],
    until_ns: Option<u64>,
) -> Result<Vec<Events>, Interrupted> {
    let (ready, is_any) = ready_files(entries);
    if is_any || until_ns == Some(0) {
        return Ok(ready);
    }
    let found = thread.interruptible_until(until_ns, poll_files(entries)).await?;
    Ok(found.unwrap_or_else(|| ready_files(entries).0))
}

/// Returns the time of the monotonic clock that a call waits for: none for a negative timeout, 0 for no wait at all.
fn until(thread: &Thread, timeout_ms: i64) -> Option<u64> {
    match timeout_ms {
        0 => Some(0),
        1.. => Some(thread.system.environment.monotonic_ns().saturating_add(timeout_ms as u64 * 1_000_000)),
        _ => None,
    }
}

pub async fn poll(thread: &mut Thread, list: u64, count: u32, timeout_ms: i32) -> CallResult {
    let until_ns = until(thread, timeout_ms.into());
    poll_until(thread, list, count, until_ns).await
}

/// Serves a `poll` of a few descriptors that are ready, or that does not wait; `None` for other calls.
pub fn poll_at_once(thread: &Thread, [list, count, timeout_ms, ..]: [u64; 6]) -> Option<CallResult> {
    let count = count as u32 as usize;
    let mut bytes = [0; POLL_LEN * FEW_ENTRIES];
    let bytes = bytes.get_mut(..POLL_LEN * count.min(super::descriptors::descriptor_limit(thread)))?;
    if bytes.is_empty() || bytes.len() != POLL_LEN * count {
        return None;
    }
    let mut place = thread.memory.try_buffer(list, bytes.len(), Access::Write)?;
    place.clone().read(bytes);
    let mut found = 0;
    for entry in bytes.chunks_exact_mut(POLL_LEN) {
        let (descriptor, events) = poll_entry(entry);
        let ready = match thread.files.get(descriptor) {
            _ if descriptor < 0 => Events::NONE,
            Ok(file) => file.ready() & events,
            Err(_) => Events(POLLNVAL),
        };
        found += u64::from(!ready.is_empty());
        entry[6..8].copy_from_slice(&(ready.0 as u16).to_le_bytes());
    }
    if found == 0 && timeout_ms as i32 != 0 {
        return None;
    }
    place.write(bytes);
    Some(Ok(found))
}

/// Returns the descriptor and the events of a `struct pollfd`.
fn poll_entry(entry: &[u8]) -> (i32, Events) {
    let descriptor = i32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]);
    (descriptor, Events(u32::from(u16::from_le_bytes([entry[4], entry[5]]))) | Events::ALWAYS)
}

/// `poll` until a time of the monotonic clock. An interrupted call continues with the rest of the time.
pub async fn poll_until(thread: &mut Thread, list: u64, count: u32, until_ns: Option<u64>) -> CallResult {
    match poll_list(thread, list, count, until_ns).await {
        Err(Errno::ERESTARTSYS) => {
            let until_ns = until_ns.unwrap_or(u64::MAX);
            thread.restart = Some(Restart::Poll { list, count, until_ns });
            Err(Errno::ERESTART_RESTARTBLOCK)
        }
        result => result,
    }
}

async fn poll_list(thread: &Thread, list: u64, count: u32, until_ns: Option<u64>) -> CallResult {
    let count = count as usize;
    if count > MOST_ENTRIES.min(super::descriptors::descriptor_limit(thread)) {
        return Err(Errno::EINVAL);
    }
    let mut bytes = alloc::vec![0; POLL_LEN * count];
    thread.memory.read_to(list, &mut bytes).await?;
    let mut entries = Vec::new();
    // By entry: the answer for a descriptor that is not open.
    let mut answers = Vec::new();
    for entry in bytes.chunks_exact(POLL_LEN) {
        let (descriptor, events) = poll_entry(entry);
        let file = if descriptor < 0 { Ok(None) } else { thread.files.get(descriptor).map(Some) };
        answers.push(if file.is_err() { Events(POLLNVAL) } else { Events::NONE });
        entries.push(PollEntry { file: file.unwrap_or(None), events });
    }
    let has_answer = answers.iter().any(|answer| !answer.is_empty());
    let ready = wait_for(thread, &entries, if has_answer { Some(0) } else { until_ns }).await?;
    let mut count = 0;
    for ((ready, answer), place) in ready.into_iter().zip(answers).zip(bytes.chunks_exact_mut(POLL_LEN)) {
        let events = ready | answer;
        count += u64::from(!events.is_empty());
        place[6..8].copy_from_slice(&(events.0 as u16).to_le_bytes());
    }
    thread.memory.write_bytes(list, &bytes).await?;
    Ok(count)
}

/// Replaces the mask of signals by the one at an address, if there is one.
async fn set_mask(thread: &Thread, mask: u64, len: u64) -> Result<(), Errno> {
    if mask == 0 {
        return Ok(());
    }
    if len != 8 {
        return Err(Errno::EINVAL);
    }
    let set = SignalSet(u64::from_le_bytes(thread.memory.read_bytes::<8>(mask).await?));
    replace_mask(thread, set);
    Ok(())
}

/// Ends a call with a replaced mask: a signal that interrupted it is handled with that mask.
fn end_masked(thread: &Thread, result: CallResult) -> CallResult {
    match result {
        Err(Errno::ERESTARTSYS) => Err(Errno::ERESTARTNOHAND),
        result => {
            restore_mask(thread);
            result
        }
    }
}

/// Reads the time until which a call waits: none for a null pointer.
async fn until_timespec(thread: &Thread, timeout: u64) -> Result<Option<u64>, Errno> {
    match timeout {
        0 => Ok(None),
        address => Ok(Some(match read_timespec(thread, address).await? {
            0 => 0,
            time => thread.system.environment.monotonic_ns().saturating_add(time),
        })),
    }
}

pub async fn ppoll(
    thread: &mut Thread,
    list: u64,
    count: u32,
    timeout: u64,
    mask: u64,
    len: u64,
) -> CallResult {
    let until_ns = until_timespec(thread, timeout).await?;
    set_mask(thread, mask, len).await?;
    let result = poll_list(thread, list, count, until_ns).await;
    end_masked(thread, result)
}

/// The events of the three sets of `select`.
const SELECTED: [u32; 3] = [POLLIN | POLLHUP | POLLERR, POLLOUT | POLLERR, POLLPRI];

async fn select_sets(thread: &Thread, count: i32, sets: [u64; 3], until_ns: Option<u64>) -> CallResult {
    let count = usize::try_from(count).map_err(|_| Errno::EINVAL)?.min(MOST_SELECTED);
    let len = count.div_ceil(64) * 8;
    let mut entries = Vec::new();
    // By entry: the set and the descriptor.
    let mut places = Vec::new();
    for (set, address) in sets.into_iter().enumerate() {
        if address == 0 {
            continue;
        }
        let mut bytes = alloc::vec![0_u8; len];
        thread.memory.read_to(address, &mut bytes).await?;
        for descriptor in (0..count).filter(|descriptor| bytes[descriptor / 8] >> (descriptor % 8) & 1 != 0) {
            let file = thread.files.get(descriptor as i32)?;
            entries.push(PollEntry { file: Some(file), events: Events(SELECTED[set]) });
            places.push((set, descriptor));
        }
    }
    let found = wait_for(thread, &entries, until_ns).await?;
    let mut answers = [(); 3].map(|()| alloc::vec![0_u8; len]);
    let mut ready = 0;
    for (events, (set, descriptor)) in found.iter().zip(&places) {
        if !events.is_empty() {
            answers[*set][descriptor / 8] |= 1 << (descriptor % 8);
            ready += 1;
        }
    }
    for (address, answer) in sets.into_iter().zip(&answers) {
        if address != 0 {
            thread.memory.write_bytes(address, answer).await?;
        }
    }
    Ok(ready)
}

pub async fn select(
    thread: &mut Thread,
    count: i32,
    readable: u64,
    writable: u64,
    exceptional: u64,
    timeout: u64,
) -> CallResult {
    let until_ns = match timeout {
        0 => None,
        address => {
            let bytes = thread.memory.read_bytes::<16>(address).await?;
            let word = |at: usize| i64::from_le_bytes(core::array::from_fn(|index| bytes[at + index]));
            let (seconds, microseconds) = (word(0), word(8));
            if seconds < 0 || microseconds < 0 {
                return Err(Errno::EINVAL);
            }
            let time = (seconds as u64).saturating_mul(1_000_000_000);
            match time.saturating_add((microseconds as u64).saturating_mul(1000)) {
                0 => Some(0),
                time => Some(thread.system.environment.monotonic_ns().saturating_add(time)),
            }
        }
    };
    let result = select_sets(thread, count, [readable, writable, exceptional], until_ns).await;
    if let (Some(until_ns), true) = (until_ns, timeout != 0) {
        // As Linux, the call stores the rest of the time.
        let left = until_ns.saturating_sub(thread.system.environment.monotonic_ns());
        let _ = thread.memory.write_bytes(timeout, &crate::calls::time::timeval(left)).await;
    }
    result.map_err(|error| if error == Errno::ERESTARTSYS { Errno::ERESTARTNOHAND } else { error })
}

pub async fn pselect6(
    thread: &mut Thread,
    count: i32,
    readable: u64,
    writable: u64,
    exceptional: u64,
    timeout: u64,
    mask: u64,
) -> CallResult {
    let until_ns = until_timespec(thread, timeout).await?;
    if mask != 0 {
        // The sixth argument points to the mask's address and length.
        let bytes = thread.memory.read_bytes::<16>(mask).await?;
        let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|index| bytes[at + index]));
        set_mask(thread, word(0), word(8)).await?;
    }
    let result = select_sets(thread, count, [readable, writable, exceptional], until_ns).await;
    end_masked(thread, result)
}

pub fn epoll_create(thread: &mut Thread, size: i32) -> CallResult {
    if size <= 0 {
        return Err(Errno::EINVAL);
    }
    epoll_create1(thread, 0)
}

pub fn epoll_create1(thread: &mut Thread, flags: u32) -> CallResult {
    let file = Epoll::open(flags)?;
    install(thread, file, flags)
}

pub async fn epoll_ctl(
    thread: &mut Thread,
    epoll: i32,
    operation: u32,
    descriptor: i32,
    event: u64,
) -> CallResult {
    let event = match operation {
        EPOLL_CTL_DEL => EpollEvent { events: 0, data: 0 },
        _ => EpollEvent::of_bytes(thread.memory.read_bytes::<{ EpollEvent::LEN }>(event).await?),
    };
    let (epoll, file) = (thread.files.get(epoll)?, thread.files.get(descriptor)?);
    let epoll = epoll.object_as::<Epoll>().ok_or(Errno::EINVAL)?;
    match operation {
        EPOLL_CTL_ADD => epoll.add(descriptor, &file, event)?,
        EPOLL_CTL_MOD => epoll.modify(descriptor, &file, event)?,
        EPOLL_CTL_DEL => epoll.delete(descriptor, &file)?,
        _ => return Err(Errno::EINVAL),
    }
    Ok(0)
}

async fn epoll_wait_until(
    thread: &Thread,
    epoll: i32,
    events: u64,
    most: i32,
    until_ns: Option<u64>,
) -> CallResult {
    let most = usize::try_from(most).ok().filter(|most| *most > 0).ok_or(Errno::EINVAL)?.min(MOST_EVENTS);
    let file = thread.files.get(epoll)?;
    let epoll = file.object_as::<Epoll>().ok_or(Errno::EINVAL)?;
    let mut found = Vec::new();
    if epoll.take(most, |event| found.push(event)) == 0 && until_ns != Some(0) {
        let waited = thread.interruptible_until(until_ns, epoll.wait(most)).await;
        found = waited.map_err(|_| Errno::EINTR)?.unwrap_or_default();
    }
    let mut bytes = Vec::with_capacity(found.len() * EpollEvent::LEN);
    found.iter().for_each(|event| bytes.extend_from_slice(&event.bytes()));
    thread.memory.write_bytes(events, &bytes).await?;
    Ok(found.len() as u64)
}

/// Returns the events that an event poll has, to one page that is mapped, or none if the call does not wait; otherwise waits
/// for events. Other calls are not served.
pub fn epoll_wait_at_once(thread: &mut Thread, words: [u64; 6]) -> AtOnce {
    match thread.files.get(words[0] as i32) {
        Ok(file) => events_at_once(thread, file, words, None),
        Err(_) => AtOnce::Unserved,
    }
}

/// As [`epoll_wait_at_once`], of an event poll that is open. A wait that continues has its limit of time.
pub fn events_at_once(
    thread: &mut Thread,
    file: Arc<OpenFile>,
    words: [u64; 6],
    until_ns: Option<u64>,
) -> AtOnce {
    let [_, events, most, timeout_ms, ..] = words;
    let room = (PAGE - events % PAGE) as usize / EpollEvent::LEN;
    let most = usize::try_from(most as i32).map_or(0, |most| most.min(room));
    let Some(epoll) = file.object_as::<Epoll>().filter(|_| most > 0) else { return AtOnce::Unserved };
    // First: events that were taken are gone.
    let buffer = thread.memory.try_buffer(events, most * EpollEvent::LEN, Access::Write);
    let Some(mut buffer) = buffer else { return AtOnce::Unserved };
    let count = epoll.take(most, |event| _ = buffer.write(&event.bytes()));
    drop(buffer);
    if count > 0 {
        return AtOnce::Served(Ok(count as u64));
    }
    match until_ns.or_else(|| until(thread, (timeout_ms as i32).into())) {
        Some(0) => AtOnce::Served(Ok(0)),
        until_ns => thread.wait_for(file, until_ns),
    }
}

pub async fn epoll_wait(
    thread: &mut Thread,
    epoll: i32,
    events: u64,
    most: i32,
    timeout_ms: i32,
) -> CallResult {
    // The limit of a wait that was not served at once to its end.
    let until_ns = thread.until_ns.take().or_else(|| until(thread, timeout_ms.into()));
    epoll_wait_until(thread, epoll, events, most, until_ns).await
}

pub async fn epoll_pwait(
    thread: &mut Thread,
    epoll: i32,
    events: u64,
    most: i32,
    timeout_ms: i32,
    mask: u64,
) -> CallResult {
    let until_ns = thread.until_ns.take().or_else(|| until(thread, timeout_ms.into()));
    set_mask(thread, mask, 8).await?;
    let result = epoll_wait_until(thread, epoll, events, most, until_ns).await;
    end_epoll_masked(thread, result)
}

/// As [`end_masked`]: an interrupted call returns [`Errno::EINTR`] after the handler.
fn end_epoll_masked(thread: &Thread, result: CallResult) -> CallResult {
    match result {
        Err(Errno::EINTR) => Err(Errno::EINTR),
        result => {
            restore_mask(thread);
            result
        }
    }
}
