//! The id map: what is known of an Ebb on all machines of an application, kept by the first (EbbRT's `GlobalIdMap`).
//!
//! A value is a few bytes that mean something to the Ebb's representatives: where the one is that does the work, for
//! example. It is the machine's that set it: as long as that is connected, no other can change it or remove it. When it
//! has left, the value stays until another machine sets it, or it comes back under its number.
//!
//! The map takes at most a 64th of the first machine's memory, and the values of one machine at most a quarter of that.
//! Where the map is full, the values of machines that have left are dropped before a new one is refused.
//!
//! | message | is answered by |
//! |---|---|
//! | `1`, id, value: to set it | nothing |
//! | `2`, id: to get it | `1`, value; `0` where there is none |
//! | `3`, id: to remove it | nothing |

use crate::error::{CallError, ServeError};
use crate::frame::Refusal;
use crate::messenger::{MESSENGER, Serving, call, serve};
use crate::served::Call;
use alloc::collections::BTreeMap;
use alloc::collections::btree_map::Entry;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::sync::atomic::Ordering;
use isola_ebbs::{Ebb, EbbId, MachineId, Representative, ebb_id, platform};
use isola_iobuf::{Chain, IoBuf};

/// Longest value, in bytes.
pub const MAX_VALUE: usize = 4096;

/// Most values of an application.
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
    /// The memory that all of them take, in bytes as [`cost`] counts.
    used: usize,
    /// The part of it that the values of each machine take.
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

/// Keeps the map on this machine, which others join.
///
/// # Errors
/// [`ServeError`].
pub fn keep() -> Result<Serving, ServeError> {
    serve(ID, |call| core::future::ready(ID_MAP.answer(&call)))
}

/// Sets what is known of an Ebb. It is this machine's from now on.
///
/// # Errors
/// [`CallError`]: `Refused(NotYours)` where it is another machine's, `Refused(Failed)` where the map is full.
pub async fn set(ebb: EbbId, value: &[u8]) -> Result<(), CallError> {
    if value.len() > MAX_VALUE {
        return Err(CallError::TooLong);
    }
    ask(SET, ebb, value).await.map(drop)
}

/// Removes what is known of an Ebb, so that any machine can set it.
///
/// # Errors
/// [`CallError`]: `Refused(NotYours)` where it is another machine's.
pub async fn remove(ebb: EbbId) -> Result<(), CallError> {
    ask(REMOVE, ebb, &[]).await.map(drop)
}

/// What is known of an Ebb; `None` where nobody has set anything.
///
/// # Errors
/// [`CallError`].
pub async fn get(ebb: EbbId) -> Result<Option<Vec<u8>>, CallError> {
    let answer = ask(GET, ebb, &[]).await?.to_vec();
    match answer.split_first() {
        Some((0, [])) => Ok(None),
        Some((1, value)) => Ok(Some(value.to_vec())),
        _ => Err(CallError::Refused(Refusal::Malformed)),
    }
}

async fn ask(kind: u8, ebb: EbbId, value: &[u8]) -> Result<Chain, CallError> {
    let mut request = alloc::vec![kind];
    request.extend(ebb.as_u64().to_be_bytes());
    request.extend(value);
    call(MachineId::FIRST, ID, Chain::from(IoBuf::from(request))).await
}

impl IdMap {
    fn answer(&self, call: &Call) -> Result<Chain, Refusal> {
        let mut words = call.request.cursor();
        let kind = words.read_u8().ok_or(Refusal::Malformed)?;
        let ebb = words.read_u64_be().and_then(EbbId::from_u64).ok_or(Refusal::Malformed)?;
        let mut bytes = alloc::vec![0; words.remaining()];
        let mut values = self.values.borrow_mut();
        let is_taken = |value: &Value| value.owner != call.from && MESSENGER.is_there(value.owner);
        match kind {
            SET | REMOVE if values.by_ebb.get(&ebb).is_some_and(is_taken) => Err(Refusal::NotYours),
            SET if bytes.len() <= MAX_VALUE => {
                words.read_slice(&mut bytes).ok_or(Refusal::Malformed)?;
                let is_there = |machine| machine == call.from || MESSENGER.is_there(machine);
                values.set(ebb, Value { owner: call.from, bytes }, room(), is_there)?;
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

/// Bytes that a value takes beside its own: its place in the map and in the heap.
const OVERHEAD: usize = 128;

/// The machine's memory is so many times what the map may take.
const SHARE: u64 = 64;

/// The map is so many times what the values of one machine may take.
const MACHINES: usize = 4;

/// Bytes that the map may take on this machine.
fn room() -> usize {
    (platform().report().memory.total_bytes.load(Ordering::Relaxed) / SHARE) as usize
}

fn cost(value: &Value) -> usize {
    value.bytes.len() + OVERHEAD
}

impl Values {
    /// Sets a value, in a map that may take `room` bytes. Drops values of machines that are not there any more where there is
    /// no room otherwise.
    fn set(
        &mut self,
        ebb: EbbId,
        value: Value,
        room: usize,
        is_there: impl Fn(MachineId) -> bool,
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
                self.by_ebb.iter().filter(|(_, its)| !is_there(its.owner)).map(|(ebb, _)| *ebb).collect();
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

    /// How many of 16,000 values of 4 KiB a machine can set, for Ebbs from `first` on.
    fn flood(
        values: &mut Values,
        owner: MachineId,
        first: u64,
        is_there: impl Fn(MachineId) -> bool,
    ) -> usize {
        let ebbs = (first..first + 16_000).filter_map(EbbId::from_u64);
        let value = || Value { owner, bytes: alloc::vec![7; MAX_VALUE] };
        ebbs.filter(|ebb| values.set(*ebb, value(), ROOM, &is_there).is_ok()).count()
    }

    #[test]
    fn one_machine_that_sets_all_it_can_leaves_room_for_others() {
        let mut values = Values::default();
        let set = flood(&mut values, machine(2), 1 << 40, |_| true);
        assert_eq!(set, ROOM / MACHINES / (MAX_VALUE + OVERHEAD));
        assert!(values.used <= ROOM / MACHINES);
        assert!(flood(&mut values, machine(3), 2 << 40, |_| true) > 0, "another machine has its own part");
    }

    #[test]
    fn values_of_machines_that_left_go_before_one_is_refused() {
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
            "machines that left take nothing"
        );
    }
}
