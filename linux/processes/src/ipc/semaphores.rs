//! Sets of semaphores (`semget`).

use super::permissions::IpcCaller;
use super::table::{GetRequest, MOST_SETS, Table};
use crate::Errno;
use crate::wait_queue::WaitQueue;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use spin::Mutex;

/// The largest value (`SEMVMX`).
pub const MOST_VALUE: i32 = 32_767;
/// The most operations of a call (`SEMOPM`).
pub const MOST_OPERATIONS: usize = 500;
/// The most semaphores of all sets (`SEMMNS`), and of one (`SEMMSL`).
pub const MOST_SEMAPHORES: usize = 32_000;

/// All sets.
#[derive(Debug)]
pub struct Semaphores {
    /// The sets.
    pub table: Mutex<Table<SemaphoreSet>>,
}

impl Default for Semaphores {
    fn default() -> Self {
        Self { table: Mutex::new(Table::new(MOST_SETS)) }
    }
}

/// A set of semaphores.
#[derive(Debug)]
pub struct SemaphoreSet {
    semaphores: Vec<Semaphore>,
    /// By process and semaphore: the change of the value at the end of the process (`SEM_UNDO`).
    undo: BTreeMap<(u32, u16), i32>,
    /// The time of the latest operation, in seconds since 1970.
    pub operated: u64,
    /// That of the latest change by `semctl`.
    pub changed: u64,
    /// Wakes the calls that wait for a change.
    pub changes: Arc<WaitQueue>,
}

/// A semaphore.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Semaphore {
    /// Its value.
    pub value: i32,
    /// The process that changed it last.
    pub last: u32,
    /// Calls that wait for a larger value.
    pub waiting_for_more: u32,
    /// Calls that wait for 0.
    pub waiting_for_zero: u32,
}

/// An operation: `struct sembuf`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The index of the semaphore.
    pub index: u16,
    /// The change of the value; 0 waits for 0.
    pub change: i16,
    /// `IPC_NOWAIT`: the call does not wait.
    pub returns_at_once: bool,
    /// `SEM_UNDO`: the change is undone at the end of the process.
    pub undoes: bool,
}

/// The semaphore for which a call waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Its index.
    pub index: u16,
    /// Whether the call waits for 0, instead of a larger value.
    pub for_zero: bool,
}

/// The semaphores that `SETVAL` or `SETALL` sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetPart<'a> {
    /// One.
    One(u16, i32),
    /// All.
    All(&'a [u16]),
}

impl SemaphoreSet {
    /// Creates a set of semaphores with the value 0.
    pub fn new(count: usize, now: u64) -> Self {
        Self {
            semaphores: alloc::vec![Semaphore::default(); count],
            undo: BTreeMap::new(),
            operated: 0,
            changed: now,
            changes: Arc::default(),
        }
    }

    /// Returns the semaphores.
    pub fn semaphores(&self) -> &[Semaphore] {
        &self.semaphores
    }

    /// Executes all operations, or none of them. Returns the semaphore to wait for if one of them cannot be executed now.
    ///
    /// # Errors
    /// [`Errno::EFBIG`] for an index outside of the set; [`Errno::EAGAIN`] if the operation does not wait;
    /// [`Errno::ERANGE`] if a value would be too large.
    pub fn operate(
        &mut self,
        operations: &[Operation],
        pid: u32,
        now: u64,
    ) -> Result<Option<Waiting>, Errno> {
        if operations.iter().any(|operation| usize::from(operation.index) >= self.semaphores.len()) {
            return Err(Errno::EFBIG);
        }
        let mut values: BTreeMap<u16, i32> = BTreeMap::new();
        let mut undo: BTreeMap<u16, i32> = BTreeMap::new();
        for operation in operations {
            let index = operation.index;
            let value = values.entry(index).or_insert(self.semaphores[usize::from(index)].value);
            let new = *value + i32::from(operation.change);
            let waits = if operation.change == 0 { *value != 0 } else { new < 0 };
            if waits {
                let waiting = Waiting { index, for_zero: operation.change == 0 };
                return if operation.returns_at_once { Err(Errno::EAGAIN) } else { Ok(Some(waiting)) };
            }
            if new > MOST_VALUE {
                return Err(Errno::ERANGE);
            }
            *value = new;
            if operation.undoes {
                let former = self.undo.get(&(pid, index)).copied().unwrap_or(0);
                let undone = undo.entry(index).or_insert(former);
                *undone -= i32::from(operation.change);
                if !(-MOST_VALUE - 1..=MOST_VALUE).contains(undone) {
                    return Err(Errno::ERANGE);
                }
            }
        }
        for (index, value) in values {
            let semaphore = &mut self.semaphores[usize::from(index)];
            (semaphore.value, semaphore.last) = (value, pid);
        }
        self.undo.extend(undo.into_iter().map(|(index, undone)| ((pid, index), undone)));
        self.undo.retain(|_, undone| *undone != 0);
        self.operated = now;
        Ok(None)
    }

    /// Notes that a call waits (1), or no longer waits (-1).
    pub fn note_waiting(&mut self, waiting: Waiting, change: i32) {
        if let Some(semaphore) = self.semaphores.get_mut(usize::from(waiting.index)) {
            let count = if waiting.for_zero {
                &mut semaphore.waiting_for_zero
            } else {
                &mut semaphore.waiting_for_more
            };
            *count = count.saturating_add_signed(change);
        }
    }

    /// Sets values. Changes that were to be undone no longer are.
    ///
    /// # Errors
    /// [`Errno::ERANGE`] for a value that is too large; [`Errno::EINVAL`] if there is no such semaphore.
    pub fn set(&mut self, part: SetPart<'_>, pid: u32, now: u64) -> Result<(), Errno> {
        match part {
            SetPart::One(index, value) => {
                let semaphore = self.semaphores.get_mut(usize::from(index)).ok_or(Errno::EINVAL)?;
                if !(0..=MOST_VALUE).contains(&value) {
                    return Err(Errno::ERANGE);
                }
                (semaphore.value, semaphore.last) = (value, pid);
                self.undo.retain(|(_, other), _| *other != index);
            }
            SetPart::All(values) => {
                if values.iter().any(|value| i32::from(*value) > MOST_VALUE) {
                    return Err(Errno::ERANGE);
                }
                for (semaphore, value) in self.semaphores.iter_mut().zip(values) {
                    (semaphore.value, semaphore.last) = ((*value).into(), pid);
                }
                self.undo.clear();
            }
        }
        self.changed = now;
        Ok(())
    }

    /// Undoes the changes of a process that ends. Returns whether there were any.
    pub fn undo(&mut self, pid: u32, now: u64) -> bool {
        let undone: Vec<_> = self.undo.extract_if((pid, 0)..=(pid, u16::MAX), |_, _| true).collect();
        for ((_, index), change) in &undone {
            if let Some(semaphore) = self.semaphores.get_mut(usize::from(*index)) {
                semaphore.value = (semaphore.value + change).clamp(0, MOST_VALUE);
                semaphore.last = pid;
            }
        }
        if !undone.is_empty() {
            self.operated = now;
        }
        !undone.is_empty()
    }
}

impl Semaphores {
    /// `semget`.
    ///
    /// # Errors
    /// Those of semget(2).
    pub fn get(&self, request: GetRequest, count: i32, caller: &IpcCaller<'_>) -> Result<i32, Errno> {
        let count =
            usize::try_from(count).ok().filter(|count| *count <= MOST_SEMAPHORES).ok_or(Errno::EINVAL)?;
        let mut table = self.table.lock();
        let total: usize = table.iter().map(|(_, _, set)| set.semaphores.len()).sum();
        let check =
            |set: &SemaphoreSet| if count > set.semaphores.len() { Err(Errno::EINVAL) } else { Ok(()) };
        let make = || match count {
            0 => Err(Errno::EINVAL),
            _ if total + count > MOST_SEMAPHORES => Err(Errno::ENOSPC),
            _ => Ok(SemaphoreSet::new(count, caller.now)),
        };
        table.get_or_create(request, caller, check, make)
    }

    /// Undoes the changes of a process that ends, in all sets.
    pub fn end_process(&self, pid: u32, now: u64) {
        let mut table = self.table.lock();
        if table.count() == 0 {
            return;
        }
        let changed = table.iter().filter_map(|(_, _, set)| set.undo(pid, now).then(|| set.changes.clone()));
        let changed: Vec<_> = changed.collect();
        drop(table);
        changed.iter().for_each(|changes| changes.wake_all());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(index: u16, change: i16) -> Operation {
        Operation { index, change, returns_at_once: false, undoes: false }
    }

    /// Executes operations one by one on plain numbers. Returns whether all could be executed.
    fn model(values: &mut [i32], undo: &mut [i32], operations: &[Operation]) -> bool {
        let (mut new, mut new_undo) = (values.to_vec(), undo.to_vec());
        for operation in operations {
            let value = &mut new[usize::from(operation.index)];
            if operation.change == 0 && *value != 0 || *value + i32::from(operation.change) < 0 {
                return false;
            }
            *value += i32::from(operation.change);
            if operation.undoes {
                new_undo[usize::from(operation.index)] -= i32::from(operation.change);
            }
        }
        values.copy_from_slice(&new);
        undo.copy_from_slice(&new_undo);
        true
    }

    #[test]
    fn random_operations_have_the_model_s_results() {
        let mut random = 7_u64;
        let mut below = |limit: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % limit
        };
        for _ in 0..300 {
            let mut set = SemaphoreSet::new(4, 0);
            let (mut values, mut undo) = ([0; 4], [[0; 4]; 2]);
            for _ in 0..40 {
                let pid = below(2) as u32;
                match below(12) {
                    0 => {
                        let (index, value) = (below(4) as u16, below(5) as i32);
                        set.set(SetPart::One(index, value), pid, 0).unwrap();
                        values[usize::from(index)] = value;
                        undo.iter_mut().for_each(|undo| undo[usize::from(index)] = 0);
                    }
                    1 => {
                        set.undo(pid, 0);
                        let undone = core::mem::take(&mut undo[pid as usize]);
                        values
                            .iter_mut()
                            .zip(undone)
                            .for_each(|(value, undone)| *value = (*value + undone).max(0));
                    }
                    _ => {
                        let operations: Vec<_> = (0..1 + below(3))
                            .map(|_| Operation {
                                index: below(4) as u16,
                                change: below(7) as i16 - 3,
                                returns_at_once: false,
                                undoes: below(2) == 0,
                            })
                            .collect();
                        let executed = set.operate(&operations, pid, 0).unwrap().is_none();
                        assert_eq!(executed, model(&mut values, &mut undo[pid as usize], &operations));
                    }
                }
                let now: Vec<_> = set.semaphores().iter().map(|semaphore| semaphore.value).collect();
                assert_eq!(now, values);
            }
        }
    }

    #[test]
    fn mistakes_change_nothing() {
        let mut set = SemaphoreSet::new(2, 0);
        let at_once = Operation { returns_at_once: true, ..operation(1, -1) };
        assert_eq!(set.operate(&[operation(0, 1), at_once], 1, 0), Err(Errno::EAGAIN));
        assert_eq!(set.operate(&[operation(2, 1)], 1, 0), Err(Errno::EFBIG));
        assert_eq!(set.operate(&[operation(0, 32_767), operation(0, 1)], 1, 0), Err(Errno::ERANGE));
        assert_eq!(set.set(SetPart::One(0, 32_768), 1, 0), Err(Errno::ERANGE));
        assert_eq!(set.set(SetPart::One(0, -1), 1, 0), Err(Errno::ERANGE));
        assert_eq!(set.set(SetPart::One(2, 0), 1, 0), Err(Errno::EINVAL));
        assert_eq!(set.set(SetPart::All(&[1, 40_000]), 1, 0), Err(Errno::ERANGE));
        assert_eq!(set.semaphores(), [Semaphore::default(); 2]);
        let waiting = set.operate(&[operation(0, 1), operation(1, -1)], 1, 0).unwrap();
        assert_eq!(waiting, Some(Waiting { index: 1, for_zero: false }));
        set.operate(&[operation(0, 1)], 1, 0).unwrap();
        let waiting = set.operate(&[operation(0, 0)], 1, 0).unwrap();
        assert_eq!(waiting, Some(Waiting { index: 0, for_zero: true }));
        let undoes = Operation { undoes: true, ..operation(1, 32_767) };
        set.operate(&[undoes], 1, 0).unwrap();
        set.set(SetPart::One(0, 0), 1, 0).unwrap();
        set.operate(&[operation(1, -32_767)], 2, 0).unwrap();
        assert_eq!(set.operate(&[undoes], 1, 0), Err(Errno::ERANGE), "too much to undo");
    }
}
