//! The id map: a map from an Ebb to a few bytes for all machines of an application, on the first machine (EbbRT's
//! `GlobalIdMap`).
//!
//! The Ebb's representatives define the meaning of a value: for example, the machine with the one representative that
//! does the work. A value belongs to the machine that set it: while that is connected, no other machine can change or
//! remove it. After it has left, the value stays until another machine sets it, or the owner returns under its number.
//!
//! The map uses at most a 64th of the first machine's memory, and the values of one machine at most a quarter of that.
//! If the map is full, the values of machines that have left are dropped before a new value is refused.
//!
//! | message | answer |
//! |---|---|
//! | `1`, id, value: sets it | empty |
//! | `2`, id: gets it | `1`, value; `0` if there is none |
//! | `3`, id: removes it | empty |

use crate::error::{CallError, ServeError};
use crate::frame::Refusal;
use crate::handlers::Call;
use crate::messenger::{self, HandlerRegistration, MESSENGER, call};
use alloc::collections::BTreeMap;
use alloc::collections::btree_map::Entry;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::sync::atomic::Ordering;
use isola_ebbs::{Ebb, EbbId, MachineId, Representative, ebb_id, platform};
use isola_iobuf::{Chain, IoBuf};

/// The maximum length of a value, in bytes.
pub const MAX_VALUE: usize = 4096;

/// The maximum number of values of an application.
pub const MAX_VALUES: usize = 65_536;

const SET: u8 = 1;
const GET: u8 = 2;
const REMOVE: u8 = 3;

static ID_MAP: Ebb<IdMap> = Ebb::new();

const ID: EbbId = ebb_id!(ID_MAP);

/// The values, on the first machine.
#[derive(Default)]
struct IdMap {
    values: RefCell<Values>,
}

/// The values, within bounds.
#[derive(Default)]
struct Values {
    by_ebb: BTreeMap<EbbId, Value>,
    /// The memory of all values, in bytes as [`cost`] counts.
    used: usize,
    /// The part of it that each machine uses.
    used_by: BTreeMap<MachineId, usize>,
}

struct Value {
    owner: MachineId,
    bytes: Vec<u8>,
}

impl Representative for IdMap {
    fn create() -> Self {
        Self::default()
    }
}

/// Serves the map on this machine, the first machine of an application.
///
/// # Errors
/// [`ServeError`].
pub fn serve() -> Result<HandlerRegistration, ServeError> {
    messenger::serve(ID, |call| core::future::ready(ID_MAP.answer(&call)))
}

/// Sets the value of an Ebb, which belongs to this machine from now on.
///
/// # Errors
/// [`CallError`]: `Refused(NotYours)` if it belongs to another machine, `Refused(Failed)` if the map is full.
pub async fn set(ebb: EbbId, value: &[u8]) -> Result<(), CallError> {
    if value.len() > MAX_VALUE {
        return Err(CallError::TooLong);
    }
    request(SET, ebb, value).await.map(drop)
}

/// Removes the value of an Ebb, so that any machine can set it.
///
/// # Errors
/// [`CallError`]: `Refused(NotYours)` if it belongs to another machine.
pub async fn remove(ebb: EbbId) -> Result<(), CallError> {
    request(REMOVE, ebb, &[]).await.map(drop)
}

/// Returns the value of an Ebb; `None` if there is none.
///
/// # Errors
/// [`CallError`].
pub async fn get(ebb: EbbId) -> Result<Option<Vec<u8>>, CallError> {
    let answer = request(GET, ebb, &[]).await?.to_vec();
    match answer.split_first() {
        Some((0, [])) => Ok(None),
        Some((1, value)) => Ok(Some(value.to_vec())),
        _ => Err(CallError::Refused(Refusal::Malformed)),
    }
}

async fn request(kind: u8, ebb: EbbId, value: &[u8]) -> Result<Chain, CallError> {
    let mut bytes = alloc::vec![kind];
    bytes.extend(ebb.as_u64().to_be_bytes());
    bytes.extend(value);
    call(MachineId::FIRST, ID, Chain::from(IoBuf::from(bytes))).await
}

impl IdMap {
    fn answer(&self, call: &Call) -> Result<Chain, Refusal> {
        let mut words = call.request.cursor();
        let kind = words.read_u8().ok_or(Refusal::Malformed)?;
        let ebb = words.read_u64_be().and_then(EbbId::from_u64).ok_or(Refusal::Malformed)?;
        let mut bytes = alloc::vec![0; words.remaining()];
        let mut values = self.values.borrow_mut();
        let is_taken = |value: &Value| value.owner != call.from && MESSENGER.is_present(value.owner);
        match kind {
            SET | REMOVE if values.by_ebb.get(&ebb).is_some_and(is_taken) => Err(Refusal::NotYours),
            SET if bytes.len() <= MAX_VALUE => {
                words.read_slice(&mut bytes).ok_or(Refusal::Malformed)?;
                let is_present = |machine| machine == call.from || MESSENGER.is_present(machine);
                values.set(ebb, Value { owner: call.from, bytes }, room(), is_present)?;
                Ok(Chain::new())
            }
            GET if bytes.is_empty() => {
                let mut answer = alloc::vec![u8::from(values.by_ebb.contains_key(&ebb))];
                answer.extend(values.by_ebb.get(&ebb).into_iter().flat_map(|value| &value.bytes));
                Ok(Chain::from(IoBuf::from(answer)))
            }
            REMOVE if bytes.is_empty() => {
                values.remove(&ebb);
                Ok(Chain::new())
            }
            _ => Err(Refusal::Malformed),
        }
    }
}

/// The bytes that a value uses in addition to its own: its entries in the map and in the heap.
const OVERHEAD: usize = 128;

/// The divisor of the machine's memory that gives the limit of the map.
const SHARE: u64 = 64;

/// The divisor of that limit that gives the limit of one machine's values.
const MACHINES: usize = 4;

/// Returns the limit of the map on this machine, in bytes.
fn room() -> usize {
    (platform().report().memory.total_bytes.load(Ordering::Relaxed) / SHARE) as usize
}

fn cost(value: &Value) -> usize {
    value.bytes.len() + OVERHEAD
}

impl Values {
    /// Sets a value, in a map of at most `room` bytes. If there is no room, first drops the values of machines that
    /// have left.
    fn set(
        &mut self,
        ebb: EbbId,
        value: Value,
        room: usize,
        is_present: impl Fn(MachineId) -> bool,
    ) -> Result<(), Refusal> {
        let (added, owner) = (cost(&value), value.owner);
        let replaced = |values: &Self| values.by_ebb.get(&ebb).map_or(0, cost);
        let replaced_own = self.by_ebb.get(&ebb).filter(|its| its.owner == owner).map_or(0, cost);
        let own = self.used_by.get(&owner).copied().unwrap_or(0);
        if own - replaced_own + added > room / MACHINES {
            return Err(Refusal::Failed);
        }
        let is_full = |values: &Self| {
            let replaced = replaced(values);
            values.used - replaced + added > room || (replaced == 0 && values.by_ebb.len() >= MAX_VALUES)
        };
        if is_full(self) {
            let left: Vec<_> =
                self.by_ebb.iter().filter(|(_, its)| !is_present(its.owner)).map(|(ebb, _)| *ebb).collect();
            left.iter().for_each(|ebb| self.remove(ebb));
        }
        if is_full(self) {
            return Err(Refusal::Failed);
        }
        self.remove(&ebb);
        self.used += added;
        *self.used_by.entry(owner).or_default() += added;
        self.by_ebb.insert(ebb, value);
        Ok(())
    }

    fn remove(&mut self, ebb: &EbbId) {
        let Some(value) = self.by_ebb.remove(ebb) else { return };
        self.used -= cost(&value);
        if let Entry::Occupied(mut used) = self.used_by.entry(value.owner) {
            *used.get_mut() -= cost(&value);
            if *used.get() == 0 {
                used.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: usize = (64 << 20) / SHARE as usize;

    fn machine(number: u32) -> MachineId {
        MachineId::new(number).unwrap()
    }

    /// Sets 16,000 values of 4 KiB for Ebbs from `first` on; returns the number of successes.
    fn flood(
        values: &mut Values,
        owner: MachineId,
        first: u64,
        is_present: impl Fn(MachineId) -> bool,
    ) -> usize {
        let ebbs = (first..first + 16_000).filter_map(EbbId::from_u64);
        let value = || Value { owner, bytes: alloc::vec![7; MAX_VALUE] };
        ebbs.filter(|ebb| values.set(*ebb, value(), ROOM, &is_present).is_ok()).count()
    }

    #[test]
    fn the_values_of_one_machine_leave_room_for_others() {
        let mut values = Values::default();
        let set = flood(&mut values, machine(2), 1 << 40, |_| true);
        assert_eq!(set, ROOM / MACHINES / (MAX_VALUE + OVERHEAD));
        assert!(values.used <= ROOM / MACHINES);
        assert!(flood(&mut values, machine(3), 2 << 40, |_| true) > 0, "another machine has its own share");
    }

    #[test]
    fn values_of_machines_that_left_are_dropped_before_a_value_is_refused() {
        let mut values = Values::default();
        for number in 2..2 + MACHINES as u32 {
            flood(&mut values, machine(number), u64::from(number) << 40, |_| true);
        }
        assert!(values.used > ROOM - (MAX_VALUE + OVERHEAD) * MACHINES);
        assert!(flood(&mut values, machine(60), 60 << 40, |owner| owner == machine(60)) > 0);
        assert!(values.by_ebb.values().all(|value| value.owner == machine(60)), "all others have left");
        assert_eq!(values.used, values.by_ebb.values().map(cost).sum::<usize>());
        assert_eq!(
            values.used_by,
            BTreeMap::from([(machine(60), values.used)]),
            "machines that left use no memory"
        );
    }
}
