//! Restartable sequences (`rseq`): a program reads its core from its own memory, and gets to know that it was interrupted in a
//! sequence of instructions that only one thread of a core may execute at a time.
//!
//! A thread registers a `struct rseq`. Its words of the core are written when the thread continues on another one. If the thread
//! leaves its program for anything but a system call, other threads may run on the core meanwhile: if the program is in a
//! sequence, it continues at the sequence's abort handler. So page faults abort a sequence here, too, which Linux does only if
//! another thread has run.

use crate::Errno;
use crate::signals::{Signal, SignalInfo};
use crate::thread::Thread;
use isola_user_mode::USER_END;

/// The length and the alignment of `struct rseq`: the core at the start, the core, the address of the sequence, flags.
const AREA_LEN: u32 = 32;
/// The length of `struct rseq_cs`: version, flags, start, length, abort handler.
const SEQUENCE_LEN: usize = 32;
/// The offset of the address of the sequence.
const SEQUENCE_AT: u64 = 8;
/// The core of a thread that is not registered.
const NO_CORE: u32 = u32::MAX;
/// The flag of `rseq` that ends the registration.
const UNREGISTER: u32 = 1;

/// The registration of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registration {
    address: u64,
    /// The bytes in front of each abort handler.
    signature: u32,
    /// The core that the program has read last; `None` before the first one.
    core: Option<u32>,
    /// The program has been left since the last look.
    is_due: bool,
}

impl Registration {
    /// Returns the registration of a child by `fork`, which has the same memory contents.
    pub fn of_child(self) -> Self {
        Self { core: None, is_due: true, ..self }
    }
}

/// `rseq`.
pub async fn rseq(
    thread: &mut Thread,
    address: u64,
    len: u32,
    flags: u32,
    signature: u32,
) -> Result<u64, Errno> {
    match (thread.rseq, flags) {
        (None, UNREGISTER) => Err(Errno::EINVAL),
        (Some(known), UNREGISTER) => {
            if known.address != address || len != AREA_LEN {
                return Err(Errno::EINVAL);
            }
            if known.signature != signature {
                return Err(Errno::EPERM);
            }
            write_core(thread, address, 0, NO_CORE).await.map_err(|_| Errno::EFAULT)?;
            thread.rseq = None;
            Ok(0)
        }
        (_, 1..) => Err(Errno::EINVAL),
        (Some(known), _) if known.address != address || len != AREA_LEN => Err(Errno::EINVAL),
        (Some(known), _) if known.signature != signature => Err(Errno::EPERM),
        (Some(_), _) => Err(Errno::EBUSY),
        (None, _) => {
            check_area(address, len)?;
            thread.rseq = Some(Registration { address, signature, core: None, is_due: true });
            Ok(0)
        }
    }
}

/// Serves a registration in memory that is mapped, outside of a sequence; `None` for other calls.
pub fn rseq_at_once(thread: &mut Thread, [address, len, flags, signature, ..]: [u64; 6]) -> Option<u64> {
    if thread.rseq.is_some() || flags as u32 != 0 || check_area(address, len as u32).is_err() {
        return None;
    }
    let core = thread.system.environment.current_core() as u32;
    let is_outside = thread.memory.try_read_bytes(address + SEQUENCE_AT)? == [0; 8];
    if !is_outside || !thread.memory.try_write_bytes(address, &core_words(core, core)) {
        return None;
    }
    let signature = signature as u32;
    thread.rseq = Some(Registration { address, signature, core: Some(core), is_due: false });
    Some(0)
}

fn check_area(address: u64, len: u32) -> Result<(), Errno> {
    if len != AREA_LEN || !address.is_multiple_of(AREA_LEN.into()) {
        return Err(Errno::EINVAL);
    }
    if address == 0 || address > USER_END - u64::from(AREA_LEN) { Err(Errno::EFAULT) } else { Ok(()) }
}

fn core_words(at_start: u32, core: u32) -> [u8; 8] {
    (u64::from(at_start) | u64::from(core) << 32).to_le_bytes()
}

async fn write_core(thread: &Thread, address: u64, at_start: u32, core: u32) -> Result<(), Errno> {
    thread.memory.write_bytes(address, &core_words(at_start, core)).await
}

/// Notes that the program was left for another reason than a system call.
pub fn note_interruption(thread: &mut Thread) {
    if let Some(registration) = &mut thread.rseq {
        registration.is_due = true;
    }
}

/// Returns whether [`resume`] has something to do.
pub fn is_due(thread: &Thread) -> bool {
    thread.rseq.is_some_and(|registration| registration.is_due)
}

/// Writes the core, and aborts a sequence, before the program continues and before signals are delivered. A registration that
/// cannot be served is SIGSEGV, as in Linux.
pub async fn resume(thread: &mut Thread) {
    let Some(registration) = thread.rseq else { return };
    let core = thread.system.environment.current_core() as u32;
    thread.rseq = Some(Registration { core: Some(core), is_due: false, ..registration });
    if serve(thread, registration, core).await.is_err() {
        thread.force(SignalInfo::kernel(Signal::SIGSEGV));
    }
}

async fn serve(thread: &mut Thread, registration: Registration, core: u32) -> Result<(), Errno> {
    let address = registration.address;
    if registration.core != Some(core) {
        write_core(thread, address, core, core).await?;
    }
    let sequence = u64::from_le_bytes(thread.memory.read_bytes(address + SEQUENCE_AT).await?);
    if sequence == 0 {
        return Ok(());
    }
    let bytes = thread.memory.read_bytes::<SEQUENCE_LEN>(sequence).await?;
    let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|index| bytes[at + index]));
    let (version, start, len, handler) = (word(0) as u32, word(8), word(16), word(24));
    let end = start.checked_add(len).ok_or(Errno::EINVAL)?;
    if version != 0 || end > USER_END || handler >= USER_END || (start..end).contains(&handler) {
        return Err(Errno::EINVAL);
    }
    let before = handler.checked_sub(4).ok_or(Errno::EINVAL)?;
    if thread.memory.read_bytes::<4>(before).await? != registration.signature.to_le_bytes() {
        return Err(Errno::EINVAL);
    }
    // Linux forgets the sequence also if the program has left it.
    thread.memory.write_bytes(address + SEQUENCE_AT, &[0; 8]).await?;
    let registers = thread.registers();
    if (start..end).contains(&registers.rip) {
        registers.rip = handler;
    }
    Ok(())
}
