//! Group `boot`: a standalone image of Isola, and the Linux guest.

use super::note;
use crate::error::BenchError;
use crate::record::Record;
use crate::session::{Counting, Service, Session, System, mib, ms};

/// Boots twice: for times, and for instructions and memory.
pub fn run(session: &Session, system: System, record: &mut Record) -> Result<(), BenchError> {
    let guest = session.start(system, Service::Kv, Counting::Off)?;
    note(record, system, "boot-first-line", ms(guest.machine.first_output().unwrap_or(guest.answered)));
    note(record, system, "boot-answer", ms(guest.answered));
    drop(guest);

    let mut guest = session.start(system, Service::Kv, Counting::On)?;
    let instructions = guest.machine.instructions().unwrap_or_default();
    note(record, system, "boot-instructions", instructions as f64 / 1e6);
    note(record, system, "boot-memory", mib(guest.machine.touched_bytes()?));
    note(record, system, "boot-image", session.image_bytes(system)? as f64 / 1024.0);
    Ok(())
}
