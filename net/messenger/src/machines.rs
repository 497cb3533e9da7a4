//! The machines that are connected to this one, and what the first machine passes on between others.

use crate::MAX_CALLS;
use crate::frame::{Body, Frame, Message, Refusal};
use crate::outgoing::Outgoing;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use isola_ebbs::MachineId;

/// Most machines that join an application.
pub const MAX_MACHINES: usize = 1024;

/// The connected machines.
#[derive(Default)]
pub(crate) struct Machines {
    connected: RefCell<BTreeMap<MachineId, Arc<Outgoing>>>,
    /// The last number that was given out.
    last: Cell<u32>,
    /// Calls that were passed on and not answered: callee, caller, the caller's number.
    passed_on: RefCell<BTreeMap<(MachineId, MachineId), Vec<u64>>>,
}

impl Machines {
    /// Gives a machine that joins its number: the one that it had before, where nobody else has it.
    pub fn number(&self, before: Option<MachineId>) -> Option<MachineId> {
        let connected = self.connected.borrow();
        if connected.len() >= MAX_MACHINES {
            return None;
        }
        let last = self.last.get().max(MachineId::FIRST.number());
        let known = before.filter(|before| {
            before.number() <= last && *before != MachineId::FIRST && !connected.contains_key(before)
        });
        known.or_else(|| {
            self.last.set(last + 1);
            MachineId::new(last + 1)
        })
    }

    /// Adds a machine.
    pub fn add(&self, machine: MachineId, outgoing: Arc<Outgoing>) {
        self.connected.borrow_mut().insert(machine, outgoing);
    }

    /// Removes a machine, and tells those that wait for its answers.
    pub fn remove(&self, machine: MachineId) {
        self.connected.borrow_mut().remove(&machine);
        let orphans: Vec<_> = {
            let mut passed_on = self.passed_on.borrow_mut();
            passed_on.retain(|(_, from), _| *from != machine);
            let orphans: Vec<_> = passed_on.keys().filter(|(to, _)| *to == machine).copied().collect();
            orphans.into_iter().filter_map(|key| Some((key.1, passed_on.remove(&key)?))).collect()
        };
        for (caller, calls) in orphans {
            calls.into_iter().for_each(|call| self.refuse(machine, caller, call, Refusal::Gone));
        }
    }

    /// The way to a machine, in one step or by the first.
    pub fn way_to(&self, machine: MachineId) -> Option<Arc<Outgoing>> {
        let connected = self.connected.borrow();
        connected.get(&machine).or_else(|| connected.get(&MachineId::FIRST)).cloned()
    }

    /// Tells `caller` that `callee` does not answer.
    pub fn refuse(&self, callee: MachineId, caller: MachineId, call: u64, refusal: Refusal) {
        self.send(Message { to: caller, from: callee, call, body: Body::Refusal(refusal) });
    }

    /// Sends a message on its way. Where there is none any more, nobody misses it.
    pub fn send(&self, message: Message) {
        if let Some(outgoing) = self.way_to(message.to) {
            let _ = outgoing.push(Frame::Message(message).encode());
        }
    }

    /// Passes a message between two other machines on: as the first machine.
    pub fn pass_on(&self, message: Message) {
        let Message { to, from, call, .. } = message;
        match message.body {
            Body::Call { .. } => {
                if !self.connected.borrow().contains_key(&to) {
                    return self.refuse(to, from, call, Refusal::NoSuchMachine);
                }
                let mut passed_on = self.passed_on.borrow_mut();
                let calls = passed_on.entry((to, from)).or_default();
                if calls.len() >= MAX_CALLS {
                    drop(passed_on);
                    return self.refuse(to, from, call, Refusal::TooMany);
                }
                calls.push(call);
            }
            Body::Answer(_) | Body::Refusal(_) => {
                let mut passed_on = self.passed_on.borrow_mut();
                let Some(calls) = passed_on.get_mut(&(from, to)) else { return };
                let Some(index) = calls.iter().position(|known| *known == call) else { return };
                calls.swap_remove(index);
                if calls.is_empty() {
                    passed_on.remove(&(from, to));
                }
            }
        }
        self.send(message);
    }
}
