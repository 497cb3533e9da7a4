//! Pending requests and restarts: they wait until enough memory is zero, or an image is hashed.
//!
//! A request does not hash, and scrubs no more than one chunk for a plugged core's stacks. A request that lacks zero
//! memory reserves bytes in the inventory and becomes pending. [`Cells::work`] scrubs and hashes in slices,
//! and completes pending requests as soon as possible, one a slice. Between two slices the supervisor serves
//! notifications, requests and deadlines as usual.
//!
//! A pending request owns only its reservation and is not persisted. It is therefore validated again as a whole when it
//! completes, and refused if cores, devices or names were taken meanwhile; a restarted supervisor forgets it without
//! loss. A due restart is still due in the checkpoint. Pending requests end with the connection that made them; those
//! about a cell also when the cell ends or is removed.

use super::table::CellTable;
use super::ticket::Ticket;
use super::{Cells, shorten};
use alloc::boxed::Box;
use alloc::vec::Vec;
use isola_abi::id::{CellId, NodeId};
use isola_abi::integrity::ImageDigest;
use isola_abi::management::{CellSpec, JournalEvent, ManagementError};
use isola_supervisor_core::{Hardware, TrustedCore};

/// The operation of a pending request.
#[derive(Debug)]
pub(super) enum Job {
    Create(Box<CellSpec>),
    Recreate(CellId),
    /// A restart by the cell's policy, which has no requester.
    Restart(CellId),
    /// Plugs memory into a running cell until it has this number of bytes.
    Give(CellId, u64),
}

/// The prerequisite of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// This number of zero bytes, on that node as far as possible.
    Memory(u64, NodeId),
    /// The same, of which some is on its way from cells of lower priority: the claim has it reserved.
    Loan(u64, NodeId),
    /// The image with this digest, hashed.
    Image(ImageDigest),
}

/// The reason why a request is not done now.
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

/// A pending request.
#[derive(Debug)]
struct PendingRequest {
    ticket: Ticket,
    since_ns: u64,
    job: Job,
    need: Need,
}

/// The pending requests, the oldest first.
#[derive(Debug, Default)]
pub(super) struct PendingRequests {
    requests: Vec<PendingRequest>,
}

/// The result of a request to create a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Created {
    /// The cell was created.
    Done(CellId),
    /// The cell's memory is being scrubbed, or its image hashed; [`Cells::take_created`] will have the answer.
    Pending(Ticket),
}

impl Job {
    /// Returns the cell that the operation is about, unless it has yet to be created.
    fn cell(&self) -> Option<CellId> {
        match self {
            Self::Create(_) => None,
            Self::Recreate(id) | Self::Restart(id) | Self::Give(id, _) => Some(*id),
        }
    }
}

impl PendingRequests {
    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Returns whether a request about the cell is pending.
    pub(super) fn is_about(&self, id: CellId) -> bool {
        self.requests.iter().any(|pending| pending.job.cell() == Some(id))
    }

    /// Returns the specifications of pending cells.
    pub(super) fn specs(&self) -> impl Iterator<Item = &CellSpec> {
        self.requests.iter().filter_map(|pending| match &pending.job {
            Job::Create(spec) => Some(&**spec),
            _ => None,
        })
    }

    /// Returns the images that pending requests will use.
    pub(super) fn images<'a>(&'a self, table: &'a CellTable) -> impl Iterator<Item = &'a ImageDigest> {
        let recreated = self.requests.iter().filter_map(|pending| match pending.job {
            Job::Recreate(id) => table.get(id).map(|cell| &cell.spec.image),
            _ => None,
        });
        self.specs().map(|spec| &spec.image).chain(recreated)
    }

    /// Returns the image for which a request waits.
    pub(super) fn wanted_image(&self) -> Option<ImageDigest> {
        self.requests.iter().find_map(|pending| match pending.need {
            Need::Image(digest) => Some(digest),
            Need::Memory(..) | Need::Loan(..) => None,
        })
    }

    /// Returns the node for whose memory the first request waits.
    pub(super) fn wanted_node(&self) -> Option<NodeId> {
        self.requests.iter().find_map(|pending| match pending.need {
            Need::Memory(_, node) | Need::Loan(_, node) => Some(node),
            Need::Image(_) => None,
        })
    }

    fn insert<H: Hardware>(&mut self, index: usize, pending: PendingRequest, core: &mut TrustedCore<H>) {
        if let Need::Memory(len_bytes, _) = pending.need {
            core.reserve_memory(len_bytes);
        }
        self.requests.insert(index, pending);
    }

    fn remove<H: Hardware>(&mut self, index: usize, core: &mut TrustedCore<H>) -> Option<PendingRequest> {
        let pending = (index < self.requests.len()).then(|| self.requests.remove(index))?;
        if let Need::Memory(len_bytes, _) = pending.need {
            core.unreserve_memory(len_bytes);
        }
        Some(pending)
    }
}

impl<H: Hardware> Cells<H> {
    /// Returns the delayed answers to requests to create a cell since the last call.
    pub fn take_created(&mut self) -> Vec<(Ticket, Result<CellId, ManagementError>)> {
        core::mem::take(&mut self.answers.created)
    }

    /// Returns whether a request waits for slices of work, which then precede sleep and a long series of requests.
    pub fn is_waited_for(&self) -> bool {
        self.is_measuring() || !self.pending.is_empty()
    }

    /// Ends the requests of a peer that has disconnected.
    pub fn forget_requests(&mut self) {
        self.cancel(|job| !matches!(job, Job::Restart(_)));
        self.answers.created.clear();
    }

    /// Returns the created cell, or makes the request pending if it has to wait.
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

    /// Makes a request pending.
    pub(super) fn put_off(&mut self, job: Job, since_ns: u64, need: Need) -> Ticket {
        let ticket = self.answers.tickets.next();
        let end = self.pending.requests.len();
        self.pending.insert(end, PendingRequest { ticket, since_ns, job, need }, &mut self.core);
        self.count_images();
        ticket
    }

    /// Ends the pending requests about a cell that ends, is removed, or receives another request.
    pub(super) fn cancel_about(&mut self, id: CellId) {
        self.cancel(|job| job.cell() == Some(id));
    }

    fn cancel(&mut self, is_over: impl Fn(&Job) -> bool) {
        let next =
            |pending: &PendingRequests| pending.requests.iter().position(|pending| is_over(&pending.job));
        if next(&self.pending).is_none() {
            return;
        }
        while let Some(index) = next(&self.pending) {
            let Some(PendingRequest { ticket, job, need, .. }) = self.pending.remove(index, &mut self.core)
            else {
                return;
            };
            if matches!(need, Need::Loan(..)) {
                self.drop_claim();
            }
            let cell = job.cell().and_then(|id| self.table.get(id));
            let error =
                cell.map_or_else(|| ManagementError::NoSuchCell(shorten("")), |cell| cell.wrong_state());
            self.answer_refused(ticket, &job, error);
        }
        self.count_images();
    }

    /// Completes the first pending request whose prerequisite exists. Returns whether there was one.
    pub(super) fn complete_pending(&mut self) -> bool {
        for index in 0..self.pending.requests.len() {
            let Some(pending) = self.pending.remove(index, &mut self.core) else { return false };
            let is_ready = match pending.need {
                Need::Loan(len_bytes, node) => self.is_claim_ready(len_bytes, node),
                Need::Memory(len_bytes, node) => self.core.inventory().memory.is_ready(len_bytes, node),
                Need::Image(digest) => self.images.is_measured(&digest),
            };
            if is_ready {
                self.attempt(index, pending);
                return true;
            }
            self.pending.insert(index, pending, &mut self.core);
        }
        false
    }

    /// Tries to complete a pending request. If circumstances have changed, it stays pending, at the same index.
    fn attempt(&mut self, index: usize, pending: PendingRequest) {
        let PendingRequest { ticket, since_ns, job, need } = pending;
        if matches!(need, Need::Loan(..)) {
            self.begin_claimed();
        }
        let attempt = match &job {
            Job::Create(spec) => self.create_now(spec, since_ns).map(Some),
            Job::Recreate(id) => self.recreate_now(*id, since_ns).map(Some),
            Job::Restart(id) => self.restart_now(*id, since_ns).map(|()| None).map_err(Obstacle::Needs),
            Job::Give(id, wanted) => self.give_now(*id, *wanted, ticket, since_ns).map(|()| None),
        };
        self.end_claimed();
        match attempt {
            Ok(created) => self.answers.created.extend(created.map(|id| (ticket, Ok(id)))),
            Err(Obstacle::Needs(need)) => {
                let pending = PendingRequest { ticket, since_ns, job, need };
                self.pending.insert(index, pending, &mut self.core);
            }
            Err(Obstacle::Refused(error)) => {
                let name = match &job {
                    Job::Create(spec) => Some(spec.name.clone()),
                    job => job.cell().and_then(|id| self.table.name_of(id)),
                };
                self.record(since_ns, name.as_deref(), JournalEvent::Refused(error.clone()));
                self.answer_refused(ticket, &job, error);
                self.count_images();
            }
        }
    }

    /// Plugs memory into a running cell for the request with that ticket, and answers the request.
    fn give_now(&mut self, id: CellId, wanted: u64, ticket: Ticket, since_ns: u64) -> Result<(), Obstacle> {
        let gone = || ManagementError::NoSuchCell(shorten(""));
        let (cell, mut parts) = self.parts(id).ok_or_else(gone)?;
        let resized = cell.give(&mut parts, wanted, since_ns)?;
        self.answers.resized.push((ticket, Ok(resized)));
        Ok(())
    }

    fn answer_refused(&mut self, ticket: Ticket, job: &Job, error: ManagementError) {
        match job {
            Job::Create(_) | Job::Recreate(_) => self.answers.created.push((ticket, Err(error))),
            Job::Give(..) => self.answers.resized.push((ticket, Err(error))),
            Job::Restart(_) => {}
        }
    }
}
