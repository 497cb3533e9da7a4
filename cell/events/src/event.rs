//! What an event is, and how one is made.

use crate::activity::APPLICATION;
use crate::carrier::present_cores;
use crate::event_loop::EVENTS;
use crate::mailbox::SentEvent;
use crate::overload::Overloaded;
use crate::room::HasRoom;
use crate::task::TaskId;
use alloc::boxed::Box;
use core::panic::Location;
use isola_abi::id::ActivityId;
use isola_ebbs::current_core;
use isola_platform::CoreIndex;

/// The resource that an event is served at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResourceId(pub u16);

impl ResourceId {
    /// The core itself: work that asks for nothing but cycles.
    pub const CPU: ResourceId = ResourceId(0);
}

/// Groups events. What a group means depends on where the label is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Label(pub u64);

/// Where an event runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// On the core that makes it.
    Here,
    /// On that core.
    Core(CoreIndex),
    /// On the core that all events of the affinity label run on, for as long as no cores come or go.
    Affine(Label),
}

impl Placement {
    /// The core that it means now.
    pub fn core(self) -> CoreIndex {
        match self {
            Self::Here => current_core(),
            Self::Core(core) => core,
            Self::Affine(Label(label)) => {
                // Fibonacci hashing: consecutive labels, as counters give, spread over all cores.
                let mut cores = present_cores();
                let spread = label.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
                let place = (spread * cores.len() as u64) >> 32;
                cores.nth(place as usize).unwrap_or(CoreIndex(0))
            }
        }
    }
}

/// What an event does.
pub(crate) enum Work {
    /// Runs a closure.
    Call(Box<dyn FnOnce()>),
    /// Polls a task of this core.
    Poll(TaskId),
    /// Runs a function of the image.
    Static(fn()),
}

/// An event that waits for its core.
pub struct QueuedEvent {
    pub(crate) work: Work,
    pub(crate) tag: EventTag,
    /// The place in the source that made it.
    pub(crate) made_at: &'static Location<'static>,
}

impl QueuedEvent {
    /// What is known of it beside what it does.
    pub fn tag(&self) -> EventTag {
        self.tag
    }

    /// The place in the source that made it.
    pub fn made_at(&self) -> &'static Location<'static> {
        self.made_at
    }
}

/// What is known of an event beside what it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventTag {
    /// Whom it is charged to.
    pub activity: ActivityId,
    /// What serves it. There is one queue a core so far, whatever the resource.
    pub resource: ResourceId,
    /// Events of one label run in the order in which they were made: so far all events of a core do.
    pub dependency: Option<Label>,
}

impl EventTag {
    /// What an event has that says nothing else, at the start of a core.
    pub(crate) const fn new() -> Self {
        Self { activity: APPLICATION, resource: ResourceId::CPU, dependency: None }
    }
}

/// The tag of the running event.
pub fn current_tag() -> EventTag {
    EVENTS.current_tag()
}

/// An event to be made: where, at which resource and for whom. The closure comes last, in [`Event::spawn`].
#[derive(Clone, Copy, Debug)]
#[must_use = "an event does nothing until it is spawned"]
pub struct Event {
    placement: Placement,
    resource: ResourceId,
    activity: Option<ActivityId>,
    dependency: Option<Label>,
}

impl Event {
    /// An event on this core, at the core itself, for the activity that makes it.
    pub const fn new() -> Self {
        Self { placement: Placement::Here, resource: ResourceId::CPU, activity: None, dependency: None }
    }

    /// Sets where it runs.
    pub const fn at(self, placement: Placement) -> Self {
        Self { placement, ..self }
    }

    /// Sets the resource that serves it.
    pub const fn resource(self, resource: ResourceId) -> Self {
        Self { resource, ..self }
    }

    /// Sets whom it is charged to.
    pub const fn charged_to(self, activity: ActivityId) -> Self {
        Self { activity: Some(activity), ..self }
    }

    /// Has it run after all events of the same dependency label that were made before for the same core.
    pub const fn after(self, dependency: Label) -> Self {
        Self { dependency: Some(dependency), ..self }
    }

    /// Makes the event. Where its core has no room for it, it waits on this one.
    ///
    /// # Panics
    /// Where the placement names a core that the cell does not have.
    #[track_caller]
    pub fn spawn(self, work: impl FnOnce() + Send + 'static) {
        self.spawn_from(Location::caller(), work);
    }

    /// Makes the event, for code at `made_at`.
    pub(crate) fn spawn_from(
        self,
        made_at: &'static Location<'static>,
        work: impl FnOnce() + Send + 'static,
    ) {
        let core = self.placement.core();
        let tag = self.tag();
        if core == current_core() {
            EVENTS.enqueue(QueuedEvent { work: Work::Call(Box::new(work)), tag, made_at });
        } else {
            EVENTS.outbox.send(core, SentEvent { work: Box::new(work), tag, made_at });
        }
    }

    /// Makes the event, where its core has room for it: for work that can be done without, or later.
    ///
    /// # Errors
    /// Gives the work back where the core is overloaded. [`room`](crate::overload::room) tells when it no longer is.
    ///
    /// # Panics
    /// Where the placement names a core that the cell does not have.
    #[track_caller]
    pub fn try_spawn<W: FnOnce() + Send + 'static>(self, work: W) -> Result<(), Overloaded<W>> {
        let core = self.placement.core();
        match Self::room_at(core) {
            HasRoom::Yes => {
                self.at(Placement::Core(core)).spawn(work);
                Ok(())
            }
            HasRoom::No => Err(Overloaded { core, work }),
        }
    }

    /// Whether an event on `core` runs behind a bounded number of others.
    pub(crate) fn room_at(core: CoreIndex) -> HasRoom {
        match core == current_core() {
            true if EVENTS.is_long() => HasRoom::No,
            true => HasRoom::Yes,
            false => EVENTS.outbox.look(core),
        }
    }

    fn tag(self) -> EventTag {
        let activity = self.activity.unwrap_or_else(|| current_tag().activity);
        EventTag { activity, resource: self.resource, dependency: self.dependency }
    }
}

impl Default for Event {
    fn default() -> Self {
        Self::new()
    }
}

/// An event with fixed work, such as a driver's poll of its device, for the core that makes it. Making it allocates nothing;
/// if no other event waits, the loop stores a pointer and copies nothing.
#[derive(Debug)]
pub struct StaticEvent {
    pub(crate) work: fn(),
    pub(crate) tag: EventTag,
    pub(crate) made_at: &'static Location<'static>,
}

impl StaticEvent {
    /// Returns an event that runs `work` for `activity`.
    #[track_caller]
    pub const fn new(activity: ActivityId, work: fn()) -> Self {
        let tag = EventTag { activity, resource: ResourceId::CPU, dependency: None };
        Self { work, tag, made_at: Location::caller() }
    }

    /// Makes the event, behind all that wait on the calling core.
    #[inline(always)]
    pub fn spawn(&'static self) {
        EVENTS.enqueue_static(self);
    }

    /// Returns a copy of the event for a queue.
    pub(crate) fn queued(&self) -> QueuedEvent {
        QueuedEvent { work: Work::Static(self.work), tag: self.tag, made_at: self.made_at }
    }
}

/// Makes an event on this core, for the activity that makes it. The closure stays here, so that it need not be
/// `Send`.
#[track_caller]
pub fn spawn(work: impl FnOnce() + 'static) {
    let (work, tag) = (Work::Call(Box::new(work)), Event::new().tag());
    EVENTS.enqueue(QueuedEvent { work, tag, made_at: Location::caller() });
}

/// Makes an event on `core`, for the activity that makes it. The core is woken where it sleeps. Where it has no room,
/// the event waits on this core: see [`Event::try_spawn`].
///
/// # Panics
/// Where the cell has no such core.
#[track_caller]
pub fn spawn_on(core: CoreIndex, work: impl FnOnce() + Send + 'static) {
    Event::new().at(Placement::Core(core)).spawn(work);
}
