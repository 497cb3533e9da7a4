//! The end of threads and processes.

use crate::core_dump;
use crate::exit_status::ExitStatus;
use crate::family::{INIT, ProcessorTime};
use crate::process::Process;
use crate::thread::{Thread, thread_time};
use crate::tracing;
use alloc::boxed::Box;
use alloc::sync::Arc;
use isola_linux_abi::numbers::{FUTEX_OWNER_DIED, FUTEX_TID_MASK, FUTEX_WAITERS};
use isola_linux_files::AlarmService;
use isola_user_mode::Access;

/// The most entries of a robust list, as in Linux: a list can be a circle.
const MOST_ROBUST: usize = 2048;

/// Ends a thread, and its process if it was the last.
pub async fn end_thread(mut thread: Box<Thread>) {
    core_dump::join(&mut thread).await;
    let own_status = ExitStatus::Exited(thread.exit_code.unwrap_or(0));
    let status = thread.process.ending().unwrap_or(own_status);
    tracing::before_end(&mut thread, status).await;
    // Before the search for locks: a thread that begins to wait later sees it.
    thread.state.set_ending();
    release_robust_futexes(&mut thread).await;
    abandon_locks(&thread).await;
    clear_tid(&mut thread).await;
    if let Some(alarm) = thread.processor_alarm.take() {
        thread.system.alarms.cancel_alarm(alarm);
    }
    if thread.has_parents_memory {
        thread.process.release_parent();
    }
    let Thread { system, process, state, memory, files, .. } = *thread;
    process.add_ended_time(thread_time(&state, system.environment.cycles()));
    // Dropped before the parent learns of the end: it may rely on closed pipes and free memory.
    // Another process can share the table of descriptors, which is closed with its last user.
    let is_last = process.thread_count() == 1;
    drop(files);
    if is_last && Arc::strong_count(&memory) <= 2 {
        memory.clear().await;
    }
    drop(memory);
    let is_last = process.remove_thread(&state);
    if state.tid() == process.pid {
        process.program.lock().name = core::mem::take(&mut *state.name.lock());
    } else {
        system.family.lock().remove_thread(state.tid());
    }
    // The last thread of a process can end by itself; its code is that of the process.
    let status = process.ending().unwrap_or(own_status);
    tracing::thread_ended(&system, &process, &state, status, is_last);
    if is_last {
        let time = process.ended_time();
        end_process(&system, &process, status, time);
    }
}

fn end_process(
    system: &crate::system::System,
    process: &Arc<Process>,
    status: ExitStatus,
    time: ProcessorTime,
) {
    system.process_ended(process, status, time);
    if process.pid == INIT {
        system.end_all();
    }
}

/// Clears the word of `CLONE_CHILD_CLEARTID` and wakes a thread that waits for it, as `pthread_join` does.
pub async fn clear_tid(thread: &mut Thread) {
    let address = core::mem::take(&mut thread.clear_tid);
    if address == 0 {
        return;
    }
    // A program may have unmapped the word.
    if thread.memory.write_bytes(address, &0_u32.to_le_bytes()).await.is_ok() {
        wake_word(thread, address, 1);
    }
}

/// Wakes threads that wait for a word, by either of its names.
fn wake_word(thread: &Thread, address: u64, most: usize) {
    let wake = |is_private, most| match thread.memory.futex_key(address, is_private) {
        Ok(key) => thread.system.futexes.wake(key, most, u32::MAX),
        Err(_) => 0,
    };
    let woken = wake(false, most);
    wake(true, most - woken);
}

/// Passes on the locks of the thread for which others wait.
async fn abandon_locks(thread: &Thread) {
    let tid = thread.state.tid();
    for (key, memory, address) in thread.system.futexes.waited_locks() {
        let Some(memory) = memory.upgrade() else { continue };
        if let Ok(word) = memory.futex_word(address, Access::Write).await {
            thread.system.futexes.abandon(key, tid, &word);
        }
    }
}

/// Marks the futexes of the thread's robust list as those of a dead owner (Linux's `exit_robust_list`).
pub async fn release_robust_futexes(thread: &mut Thread) {
    let head = core::mem::take(&mut thread.robust_list);
    if head == 0 {
        return;
    }
    let tid = thread.state.tid();
    let memory = thread.memory.clone();
    let word = async |address: u64| memory.read_bytes::<8>(address).await.map(u64::from_le_bytes).ok();
    let Ok(list) = memory.read_bytes::<24>(head).await else { return };
    let field = |at: usize| u64::from_le_bytes(core::array::from_fn(|index| list[at + index]));
    let (first, offset, pending) = (field(0), field(8), field(16));
    let mut entry = first;
    for _ in 0..MOST_ROBUST {
        if entry & !1 == head || entry == 0 {
            break;
        }
        let next = word(entry & !1).await;
        if entry != pending {
            release(thread, (entry & !1).wrapping_add(offset), tid, false).await;
        }
        let Some(next) = next else { break };
        entry = next;
    }
    if pending != 0 {
        // An unlock by the kernel's protocol does not leave the word at 0 without a wake-up.
        let may_be_unlocked = pending & 1 == 0;
        release(thread, (pending & !1).wrapping_add(offset), tid, may_be_unlocked).await;
    }
}

/// Marks one futex, if the thread owns it. If it `may_be_unlocked`, the thread may have ended between the change of the word
/// and the wake-up.
async fn release(thread: &Thread, address: u64, tid: u32, may_be_unlocked: bool) {
    let Ok(word) = thread.memory.futex_word(address, Access::Write).await else { return };
    loop {
        let value = word.load();
        if may_be_unlocked && value == 0 {
            wake_word(thread, address, 1);
        }
        if value & FUTEX_TID_MASK != tid {
            return;
        }
        let dead = value & FUTEX_WAITERS | FUTEX_OWNER_DIED;
        if word.compare_exchange(value, dead).is_ok() {
            if value & FUTEX_WAITERS != 0 {
                wake_word(thread, address, 1);
            }
            return;
        }
    }
}
