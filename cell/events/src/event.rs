//! Events and their creation.

use crate::activity::APPLICATION;
use crate::affinity::{self, CountedEvent};
use crate::event_loop::EVENTS;
use crate::overload::Overloaded;
use crate::room::HasRoom;
use crate::task::TaskId;
use alloc::boxed::Box;
use core::panic::Location;
use isola_abi::id::ActivityId;
use isola_ebbs::current_core;
use isola_platform::CoreIndex;

/// The resource that serves an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResourceId(pub u16);

impl ResourceId {
    /// The core itself, for work that needs only cycles.
    pub const CPU: ResourceId = ResourceId(0);
}

/// Groups events. The meaning of a group depends on the use of the label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Label(pub u64);

/// The core on which an event runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// The creating core.
    Here,
    /// The named core.
    Core(CoreIndex),
    /// The same core for all events of this affinity label and activity, until the label's time has passed and the
    /// core is busier than another one: see [`affinity`].
    Affine(Label),
}

impl Placement {
    /// Returns the core that this placement selects now, for the current activity.
    pub fn core(self) -> CoreIndex {
        self.core_for(|| current_tag().activity)
    }

    fn core_for(self, activity: impl FnOnce() -> ActivityId) -> CoreIndex {
        match self {
            Self::Here => current_core(),
            Self::Core(core) => core,
            Self::Affine(label) => affinity::core_for(activity(), label),
        }
    }
}

/// The work of an event.
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
    /// The source location that created it.
    pub(crate) made_at: &'static Location<'static>,
}

impl QueuedEvent {
    /// Returns the event's tag.
    pub fn tag(&self) -> EventTag {
        self.tag
    }

    /// Returns the source location that created the event.
    pub fn made_at(&self) -> &'static Location<'static> {
        self.made_at
    }
}

/// An event in transit to another core.
pub(crate) struct SentEvent {
    pub work: Box<dyn FnOnce() + Send>,
    pub tag: EventTag,
    pub made_at: &'static Location<'static>,
}

impl SentEvent {
    pub fn queued(self) -> QueuedEvent {
        QueuedEvent { work: Work::Call(self.work), tag: self.tag, made_at: self.made_at }
    }
}

/// The properties of an event apart from its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventTag {
    /// The activity to which it is charged.
    pub activity: ActivityId,
    /// The resource that serves it. Each core has one queue, or one per activity, for all resources.
    pub resource: ResourceId,
    /// Events of one label and activity run in the order of their creation, as all events of an activity do on a core.
    pub dependency: Option<Label>,
}

impl EventTag {
    /// The default tag, in force when a core starts.
    pub(crate) const fn new() -> Self {
        Self { activity: APPLICATION, resource: ResourceId::CPU, dependency: None }
    }
}

/// Returns the tag of the running event.
pub fn current_tag() -> EventTag {
    EVENTS.current_tag()
}

/// A builder of an event: its core, resource and activity. [`Event::spawn`] takes the closure last.
#[derive(Clone, Copy, Debug)]
#[must_use = "an event does nothing until it is spawned"]
pub struct Event {
    placement: Placement,
    resource: ResourceId,
    activity: Option<ActivityId>,
    dependency: Option<Label>,
}

impl Event {
    /// Describes an event on this core, served by the core itself, for the current activity.
    pub const fn new() -> Self {
        Self { placement: Placement::Here, resource: ResourceId::CPU, activity: None, dependency: None }
    }

    /// Sets the core on which it runs.
    pub const fn at(self, placement: Placement) -> Self {
        Self { placement, ..self }
    }

    /// Sets the resource that serves it.
    pub const fn resource(self, resource: ResourceId) -> Self {
        Self { resource, ..self }
    }

    /// Sets the activity to which it is charged.
    pub const fn charged_to(self, activity: ActivityId) -> Self {
        Self { activity: Some(activity), ..self }
    }

    /// Orders it after all earlier events of the same dependency label for the same core.
    pub const fn after(self, dependency: Label) -> Self {
        Self { dependency: Some(dependency), ..self }
    }

    /// Creates the event. If its core has no room, the event waits on this core.
    ///
    /// # Panics
    /// If the placement names a core that the cell does not have.
    #[track_caller]
    pub fn spawn(self, work: impl FnOnce() + Send + 'static) {
        self.spawn_from(Location::caller(), work);
    }

    /// Creates the event, with `made_at` as its source location.
    pub(crate) fn spawn_from(
        self,
        made_at: &'static Location<'static>,
        work: impl FnOnce() + Send + 'static,
    ) {
        let (core, counted) = self.place();
        self.send(made_at, core, counted, work);
    }

    /// Returns the event's core. If the core of its affinity label has to stay the same until the event has run, the
    /// event is counted.
    fn place(self) -> (CoreIndex, Option<CountedEvent>) {
        match self.placement {
            Placement::Affine(label) if self.dependency.is_some() => {
                let (core, counted) = affinity::core_for_dependent(self.tag().activity, label);
                (core, Some(counted))
            }
            placement => (placement.core_for(|| self.tag().activity), None),
        }
    }

    fn send(
        self,
        made_at: &'static Location<'static>,
        core: CoreIndex,
        counted: Option<CountedEvent>,
        work: impl FnOnce() + Send + 'static,
    ) {
        let work: Box<dyn FnOnce() + Send> = match counted {
            None => Box::new(work),
            Some(counted) => Box::new(move || {
                work();
                counted.end();
            }),
        };
        let tag = self.tag();
        if core == current_core() {
            EVENTS.enqueue(QueuedEvent { work: Work::Call(work), tag, made_at });
        } else {
            EVENTS.outbox.send(core, SentEvent { work, tag, made_at });
        }
    }

    /// Creates the event if its core has room: for work that can be dropped or postponed.
    ///
    /// # Errors
    /// Returns the work if the core is overloaded. [`room`](crate::overload::room) completes when it no longer is.
    ///
    /// # Panics
    /// If the placement names a core that the cell does not have.
    #[track_caller]
    pub fn try_spawn<W: FnOnce() + Send + 'static>(self, work: W) -> Result<(), Overloaded<W>> {
        let (core, counted) = self.place();
        match Self::room_at(core) {
            HasRoom::Yes => {
                self.send(Location::caller(), core, counted, work);
                Ok(())
            }
            HasRoom::No => {
                if let Some(counted) = counted {
                    counted.end();
                }
                Err(Overloaded { core, work })
            }
        }
    }

    /// Returns whether an event on `core` would wait behind a bounded number of others only.
    pub(crate) fn room_at(core: CoreIndex) -> HasRoom {
        match core == current_core() {
            true if EVENTS.is_long() => HasRoom::No,
            true => HasRoom::Yes,
            false => EVENTS.outbox.check_room(core),
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

/// An event with fixed work, such as a driver's poll of its device, for the core that creates it. Its creation
/// allocates nothing; if no other event waits, the loop stores a pointer and copies nothing.
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

    /// Queues the event behind all others of the calling core.
    #[inline(always)]
    pub fn spawn(&'static self) {
        EVENTS.enqueue_static(self);
    }

    /// Returns a copy of the event for a queue.
    pub(crate) fn queued(&self) -> QueuedEvent {
        QueuedEvent { work: Work::Static(self.work), tag: self.tag, made_at: self.made_at }
    }
}

/// Creates an event on this core, for the current activity. The closure stays on this core, so it need not be `Send`.
#[track_caller]
pub fn spawn(work: impl FnOnce() + 'static) {
    let (work, tag) = (Work::Call(Box::new(work)), Event::new().tag());
    EVENTS.enqueue(QueuedEvent { work, tag, made_at: Location::caller() });
}

/// Creates an event on `core`, for the current activity, and wakes the core if it is halted. If the core has no room,
/// the event waits on this core: see [`Event::try_spawn`].
///
/// # Panics
/// If the cell has no such core.
#[track_caller]
pub fn spawn_on(core: CoreIndex, work: impl FnOnce() + Send + 'static) {
    Event::new().at(Placement::Core(core)).spawn(work);
}
