//! Requests and restarts that wait: until enough memory is zero, or until an image is measured.
//!
//! Nothing is scrubbed or hashed within a request. A request for which too little memory is zero reserves its bytes in
//! the inventory and becomes a [`Pending`] one; [`Cells::work`] scrubs and hashes in slices, and does what is pending as
//! soon as it can be done, one a slice. Between two slices the supervisor serves notifications, requests and
//! deadlines as ever.
//!
//! A pending request owns nothing but its reservation, and nothing is written down of it. So it is checked as a whole
//! once more when it is done, and refused then where cores, devices or names have gone to others; and a supervisor
//! that restarts forgets it without loss. A restart that was due is still due in the checkpoint. Pending requests end
//! with the connection that made them, and those about a cell when the cell ends or is forgotten.

use super::ticket::Ticket;
use super::{Cells, shorten};
use crate::effects::Effects;
use alloc::boxed::Box;
use alloc::vec::Vec;
use isola_abi::id::{CellId, NodeId};
use isola_abi::integrity::ImageDigest;
use isola_abi::management::{CellSpec, JournalEvent, ManagementError};

/// What a request does once it can be done.
#[derive(Debug)]
pub(super) enum Job {
    Create(Box<CellSpec>),
    Recreate(CellId),
    /// A restart by the cell's policy: nobody waits for an answer.
    Restart(CellId),
    /// Gives a running cell memory until it has so many bytes.
    Give(CellId, u64),
}

/// What has to be there before a request can be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// So many bytes of zero memory, of that node as far as possible.
    Memory(u64, NodeId),
    /// That image, measured.
    Image(ImageDigest),
}

/// Why a request is not done now.
#[derive(Debug)]
pub(super) enum Obstacle {
    Refused(ManagementError),
    Needs(Need),
}

impl From<ManagementError> for Obstacle {
    fn from(error: ManagementError) -> Self {
        Self::Refused(error)
    }
}

/// A request that waits.
#[derive(Debug)]
pub(super) struct Pending {
    ticket: Ticket,
    since_ns: u64,
    job: Job,
    need: Need,
}

/// Whether a cell was created, or is going to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Created {
    /// It was.
    Done(CellId),
    /// Its memory is being scrubbed; [`Cells::take_created`] has the answer.
    Pending(Ticket),
}

impl Job {
    /// The cell that it is about, where there is one yet.
    fn cell(&self) -> Option<CellId> {
        match self {
            Self::Create(_) => None,
            Self::Recreate(id) | Self::Restart(id) | Self::Give(id, _) => Some(*id),
        }
    }
}

impl<E: Effects> Cells<E> {
    /// The answers to requests that had to wait for their cells' memory since this was last asked.
    pub fn take_created(&mut self) -> Vec<(Ticket, Result<CellId, ManagementError>)> {
        core::mem::take(&mut self.created)
    }

    /// Whether anybody waits for slices of work: then they come before sleep, and before a long series of requests.
    pub fn is_waited_for(&self) -> bool {
        self.is_measuring() || !self.pending.is_empty()
    }

    /// Ends the requests of a peer that has gone.
    pub fn forget_requests(&mut self) {
        self.cancel(|job| !matches!(job, Job::Restart(_)));
        self.created.clear();
    }

    /// Creates a cell now, or when there is zero memory for it.
    pub(super) fn begin_create(
        &mut self,
        job: Job,
        since_ns: u64,
        attempt: Result<CellId, Obstacle>,
    ) -> Result<Created, ManagementError> {
        match attempt {
            Ok(id) => Ok(Created::Done(id)),
            Err(Obstacle::Refused(error)) => Err(error),
            Err(Obstacle::Needs(need)) => Ok(Created::Pending(self.put_off(job, since_ns, need))),
        }
    }

    /// Notes a request that has to wait.
    pub(super) fn put_off(&mut self, job: Job, since_ns: u64, need: Need) -> Ticket {
        let ticket = self.tickets.next();
        self.enqueue(self.pending.len(), Pending { ticket, since_ns, job, need });
        self.count_images();
        ticket
    }

    /// Whether something about that cell waits.
    pub(super) fn is_pending(&self, id: CellId) -> bool {
        self.pending.iter().any(|pending| pending.job.cell() == Some(id))
    }

    /// The specifications of the cells that wait to be created.
    pub(super) fn pending_specs(&self) -> impl Iterator<Item = &CellSpec> {
        self.pending.iter().filter_map(|pending| match &pending.job {
            Job::Create(spec) => Some(&**spec),
            _ => None,
        })
    }

    /// The images that are going to be used.
    pub(super) fn pending_images(&self) -> impl Iterator<Item = &ImageDigest> {
        let recreated = self.pending.iter().filter_map(|pending| match pending.job {
            Job::Recreate(id) => self.cells.get(&id).map(|cell| &cell.spec.image),
            _ => None,
        });
        self.pending_specs().map(|spec| &spec.image).chain(recreated)
    }

    /// Ends what waits about a cell: it ends, is forgotten, or something else is asked of it.
    pub(super) fn cancel_of(&mut self, id: CellId) {
        self.cancel(|job| job.cell() == Some(id));
    }

    fn cancel(&mut self, is_over: impl Fn(&Job) -> bool) {
        if !self.pending.iter().any(|pending| is_over(&pending.job)) {
            return;
        }
        while let Some(index) = self.pending.iter().position(|pending| is_over(&pending.job)) {
            let Some(Pending { ticket, job, .. }) = self.dequeue(index) else { return };
            let cell = job.cell().and_then(|id| self.cells.get(&id));
            let error =
                cell.map_or_else(|| ManagementError::NoSuchCell(shorten("")), |cell| cell.wrong_state());
            self.answer_refused(ticket, &job, error);
        }
        self.count_images();
    }

    fn enqueue(&mut self, index: usize, pending: Pending) {
        if let Need::Memory(len_bytes, _) = pending.need {
            self.inventory.memory.reserve(len_bytes);
        }
        self.pending.insert(index, pending);
    }

    fn dequeue(&mut self, index: usize) -> Option<Pending> {
        let pending = (index < self.pending.len()).then(|| self.pending.remove(index))?;
        if let Need::Memory(len_bytes, _) = pending.need {
            self.inventory.memory.unreserve(len_bytes);
        }
        Some(pending)
    }

    /// The image that somebody waits for.
    pub(super) fn wanted_image(&self) -> Option<ImageDigest> {
        self.pending.iter().find_map(|pending| match pending.need {
            Need::Image(digest) => Some(digest),
            Need::Memory(..) => None,
        })
    }

    /// The node whose memory is waited for first.
    pub(super) fn wanted_node(&self) -> Option<NodeId> {
        self.pending.iter().find_map(|pending| match pending.need {
            Need::Memory(_, node) => Some(node),
            Need::Image(_) => None,
        })
    }

    /// Does the first pending request that can be done. Returns whether there was one.
    pub(super) fn do_pending(&mut self) -> bool {
        for index in 0..self.pending.len() {
            let Some(pending) = self.dequeue(index) else { return false };
            let is_ready = match pending.need {
                Need::Memory(len_bytes, node) => self.inventory.memory.is_ready(len_bytes, node),
                Need::Image(digest) => self.images.is_measured(&digest),
            };
            if is_ready {
                self.attempt(index, pending);
                return true;
            }
            self.enqueue(index, pending);
        }
        false
    }

    /// Does a request that has waited. It may have to wait on, in its place, where something has changed.
    fn attempt(&mut self, index: usize, pending: Pending) {
        let Pending { ticket, since_ns, job, .. } = pending;
        let attempt = match &job {
            Job::Create(spec) => self.create_now(spec, since_ns).map(Some),
            Job::Recreate(id) => self.recreate_now(*id, since_ns).map(Some),
            Job::Restart(id) => self.restart_now(*id, since_ns).map(|()| None).map_err(Obstacle::Needs),
            Job::Give(id, wanted) => self.give(*id, *wanted, since_ns).map(|resized| {
                self.resized.push((ticket, Ok(resized)));
                None
            }),
        };
        match attempt {
            Ok(created) => self.created.extend(created.map(|id| (ticket, Ok(id)))),
            Err(Obstacle::Needs(need)) => self.enqueue(index, Pending { ticket, since_ns, job, need }),
            Err(Obstacle::Refused(error)) => {
                let name = match &job {
                    Job::Create(spec) => Some(spec.name.clone()),
                    job => job.cell().and_then(|id| self.name_of(id)),
                };
                self.record(since_ns, name.as_deref(), JournalEvent::Refused(error.clone()));
                self.answer_refused(ticket, &job, error);
                self.count_images();
            }
        }
    }

    fn answer_refused(&mut self, ticket: Ticket, job: &Job, error: ManagementError) {
        match job {
            Job::Create(_) | Job::Recreate(_) => self.created.push((ticket, Err(error))),
            Job::Give(..) => self.resized.push((ticket, Err(error))),
            Job::Restart(_) => {}
        }
    }
}
