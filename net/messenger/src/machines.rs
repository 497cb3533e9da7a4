//! The machines that are connected to this one, and the first machine's forwarding between two others.

use crate::MAX_CALLS;
use crate::frame::{Body, Frame, Message, Refusal};
use crate::send_queue::SendQueue;
use crate::transport::TransportKind;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use isola_ebbs::MachineId;

/// The maximum number of machines that join an application.
pub const MAX_MACHINES: usize = 1024;

/// The largest number of a machine.
const MAX_NUMBER: u32 = u32::MAX >> 1;

/// The connected machines.
pub(crate) struct Machines {
    connected: RefCell<BTreeMap<MachineId, Connected>>,
    /// The last number that was assigned.
    last: Cell<u32>,
    /// Calls that were forwarded and not answered: callee, caller, the caller's numbers.
    forwarded: RefCell<BTreeMap<(MachineId, MachineId), Vec<u64>>>,
}

/// The connection to a machine.
struct Connected {
    send_queue: Arc<SendQueue>,
    transport: TransportKind,
}

impl Machines {
    /// Returns a table without machines. The first machine numbers the others from `start` on, a random number, so that
    /// a restarted first machine does not assign the numbers of earlier machines.
    pub fn counting_from(start: u32) -> Self {
        let last = Cell::new(start & MAX_NUMBER);
        Self { connected: RefCell::default(), last, forwarded: RefCell::default() }
    }

    /// Returns the number for a joining machine: its previous one if that is free, otherwise a new one; `None` if there
    /// are too many machines.
    pub fn number(&self, before: Option<MachineId>) -> Option<MachineId> {
        let connected = self.connected.borrow();
        if connected.len() >= MAX_MACHINES {
            return None;
        }
        let is_free = |number: &MachineId| *number != MachineId::FIRST && !connected.contains_key(number);
        before.filter(is_free).or_else(|| {
            // At most `MAX_MACHINES` numbers and that of the first machine are taken, so one of these is free.
            (0..MAX_MACHINES + 2).find_map(|_| {
                self.last.set(self.last.get() % MAX_NUMBER + 1);
                MachineId::new(self.last.get()).filter(is_free)
            })
        })
    }

    /// Returns whether a machine is connected to this one.
    pub fn is_connected(&self, machine: MachineId) -> bool {
        self.connected.borrow().contains_key(&machine)
    }

    /// Adds a machine.
    pub fn add(&self, machine: MachineId, send_queue: Arc<SendQueue>, transport: TransportKind) {
        self.connected.borrow_mut().insert(machine, Connected { send_queue, transport });
    }

    /// Returns the connected machines and their transports.
    pub fn list(&self) -> Vec<(MachineId, TransportKind)> {
        let connected = self.connected.borrow();
        connected.iter().map(|(machine, connected)| (*machine, connected.transport)).collect()
    }

    /// Removes a machine, unless it has another connection by now. Returns whether it did.
    pub fn remove_if(&self, machine: MachineId, send_queue: &Arc<SendQueue>) -> bool {
        let is_same = |connected: &Connected| Arc::ptr_eq(&connected.send_queue, send_queue);
        let is_connected = self.connected.borrow().get(&machine).is_some_and(is_same);
        if is_connected {
            self.remove(machine);
        }
        is_connected
    }

    /// Removes a machine, and refuses all forwarded calls that wait for its answers.
    pub fn remove(&self, machine: MachineId) {
        self.connected.borrow_mut().remove(&machine);
        let orphans: Vec<_> = {
            let mut forwarded = self.forwarded.borrow_mut();
            forwarded.retain(|(_, from), _| *from != machine);
            let orphans: Vec<_> = forwarded.keys().filter(|(to, _)| *to == machine).copied().collect();
            orphans.into_iter().filter_map(|key| Some((key.1, forwarded.remove(&key)?))).collect()
        };
        for (caller, calls) in orphans {
            calls.into_iter().for_each(|call| self.refuse(machine, caller, call, Refusal::Disconnected));
        }
    }

    /// Returns the queue of the connection to a machine, or to the first machine, which forwards.
    pub fn queue_to(&self, machine: MachineId) -> Option<Arc<SendQueue>> {
        let connected = self.connected.borrow();
        let connected = connected.get(&machine).or_else(|| connected.get(&MachineId::FIRST))?;
        Some(connected.send_queue.clone())
    }

    /// Sends `caller` a refusal from `callee`.
    pub fn refuse(&self, callee: MachineId, caller: MachineId, call: u64, refusal: Refusal) {
        self.send(Message { to: caller, from: callee, call, body: Body::Refusal(refusal) });
    }

    /// Sends a message. Without a connection the message is dropped: its receiver has left.
    pub fn send(&self, message: Message) {
        if let Some(send_queue) = self.queue_to(message.to) {
            let _ = send_queue.push(Frame::Message(message).encode());
        }
    }

    /// Forwards a message between two other machines, as the first machine, once there is room in the queue.
    pub async fn forward(&self, message: Message) {
        let Message { to, from, call, .. } = message;
        let queue = self.connected.borrow().get(&to).map(|connected| connected.send_queue.clone());
        let is_call = matches!(message.body, Body::Call { .. });
        let Some(queue) = queue else {
            if is_call {
                self.refuse(to, from, call, Refusal::NoSuchMachine);
            }
            return;
        };
        let room = queue.room().await;
        // If the sender has left meanwhile, the message is obsolete.
        if !self.is_connected(from) {
            return;
        }
        if is_call {
            if room.is_err() {
                return self.refuse(to, from, call, Refusal::Disconnected);
            }
            if !self.record_call(to, from, call) {
                return self.refuse(to, from, call, Refusal::TooMany);
            }
        } else if !self.take_call(from, to, call) {
            return;
        }
        // If the connection ends from here on, the message is dropped: `remove` refuses all calls to that machine.
        let _ = queue.push(Frame::Message(message).encode());
    }

    /// Records a forwarded call; false if the caller has [`MAX_CALLS`] calls there already.
    fn record_call(&self, callee: MachineId, caller: MachineId, call: u64) -> bool {
        let mut forwarded = self.forwarded.borrow_mut();
        let calls = forwarded.entry((callee, caller)).or_default();
        let has_room = calls.len() < MAX_CALLS;
        if has_room {
            calls.push(call);
        }
        has_room
    }

    /// Removes a call from those that wait for an answer; false if it is not among them.
    fn take_call(&self, callee: MachineId, caller: MachineId, call: u64) -> bool {
        let mut forwarded = self.forwarded.borrow_mut();
        let Some(calls) = forwarded.get_mut(&(callee, caller)) else { return false };
        let Some(index) = calls.iter().position(|known| *known == call) else { return false };
        calls.swap_remove(index);
        if calls.is_empty() {
            forwarded.remove(&(callee, caller));
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backlog::Backlog;

    static BACKLOG: Backlog = Backlog::with_room(|| usize::MAX);

    fn joined(machines: &Machines, before: Option<MachineId>) -> MachineId {
        let number = machines.number(before).unwrap();
        machines.add(number, BACKLOG.open(), TransportKind::Tcp);
        number
    }

    #[test]
    fn machine_numbers_are_unique_for_any_start() {
        for start in [0, 1, 7, MAX_NUMBER - 3, MAX_NUMBER, u32::MAX] {
            let machines = Machines::counting_from(start);
            let mut numbers: Vec<_> = (0..MAX_MACHINES).map(|_| joined(&machines, None)).collect();
            assert_eq!(machines.number(None), None, "the application is full");
            numbers.sort();
            numbers.dedup();
            assert_eq!(numbers.len(), MAX_MACHINES);
            assert!(!numbers.contains(&MachineId::FIRST));
        }
    }

    #[test]
    fn a_returning_machine_gets_its_number_unless_another_has_it() {
        let machines = Machines::counting_from(100);
        let (old, first) = (MachineId::new(70), Some(MachineId::FIRST));
        assert_eq!(Some(joined(&machines, old)), old, "even a number of an earlier first machine");
        assert_ne!(Some(joined(&machines, old)), old);
        assert_ne!(Some(joined(&machines, first)), first);
        // A number in use is not assigned when the count reaches it.
        let ahead = MachineId::new(joined(&machines, None).number() + 1);
        assert_eq!(Some(joined(&machines, ahead)), ahead);
        assert_ne!(Some(joined(&machines, None)), ahead);
        let left = joined(&machines, None);
        machines.remove(left);
        assert_ne!(joined(&machines, None), left, "the machine may return");
        assert_eq!(joined(&machines, Some(left)), left);
    }
}
