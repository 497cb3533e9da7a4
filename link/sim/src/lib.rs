//! A machine of cells in one process, whose supervisor introduces each to each: it keeps the tables of links as the
//! supervisor of `isola_abi::links` does. A cell of the machine is a thread.
//!
//! For tests only: errors panic, and packages depend on this one for their tests alone.
#![forbid(unsafe_code)]

use isola_abi::id::{ApicId, CellId, PhysAddr, PhysRange};
use isola_abi::layout::PAGE_SIZE;
use isola_abi::links::{
    DOORBELL_VECTOR, Link, LinkAccess, LinkDemand, LinkPart, LinkRefusal, LinkRequest, LinkState, LinkTable,
    LinkWindow, MAX_LINKS, Survival,
};
use isola_abi::service::{DeviceOffer, DriverSetup};
use isola_events::{exit, run, spawn_task};
use isola_hosted::{Hosted, Settings};
use isola_platform::block::BlockPort;
use isola_platform::network::NetworkPort;
use isola_platform::{CoreIndex, LinkPort, PeerWords, Platform};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// The machine.
#[derive(Debug, Default)]
pub struct Machine {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    cells: Vec<&'static Port>,
    /// The words at the addresses that cells have named.
    memory: BTreeMap<u64, &'static [AtomicU64]>,
    /// The names of the cells whose manifests accept no channels.
    refusing: BTreeSet<String>,
}

/// A cell of the machine, and its links.
pub struct Port {
    machine: &'static Machine,
    name: String,
    id: CellId,
    table: Box<LinkTable>,
    request: LinkRequest,
    platform: OnceLock<&'static Hosted>,
    has_ended: AtomicBool,
    /// The doorbells that this cell has sent.
    doorbells: AtomicUsize,
    /// The allocations to come that are memory of the image.
    image_blocks: AtomicUsize,
    /// Whether answers, and the doorbells for them, come some time after the requests.
    answers_late: AtomicBool,
}

/// The time from a request to its answer, and from there to the doorbell, if answers come late.
const ANSWER_DELAY: Duration = Duration::from_micros(500);
const BELL_DELAY: Duration = Duration::from_millis(10);

impl core::fmt::Debug for Port {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Port({})", self.name)
    }
}

impl Machine {
    /// Returns a machine without cells.
    pub fn new() -> &'static Self {
        Box::leak(Box::default())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a cell refuse channels of others, as a manifest without `accept` does.
    pub fn refuse_channels_to(&self, cell: &str) {
        self.state().refusing.insert(cell.into());
    }

    /// Adds a cell. The caller [runs](Port::attach) and [ends](Port::end) it.
    pub fn add(&'static self, name: &str) -> &'static Port {
        let mut state = self.state();
        let port = Box::leak(Box::new(Port {
            machine: self,
            name: name.into(),
            id: CellId(state.cells.len() as u32 + 1),
            table: Box::new(LinkTable::<[Link; MAX_LINKS]>::default()),
            request: LinkRequest::default(),
            platform: OnceLock::new(),
            has_ended: AtomicBool::new(false),
            doorbells: AtomicUsize::new(0),
            image_blocks: AtomicUsize::new(0),
            answers_late: AtomicBool::new(false),
        }));
        state.cells.push(port);
        port
    }

    /// Starts a cell that runs `main` as a task of its first core, and ends with it.
    ///
    /// # Panics
    /// The thread panics if a core of the cell does.
    pub fn start<F: Future<Output = ()> + 'static>(
        &'static self,
        name: &str,
        main: impl Fn(&'static Port) -> F + Send + Sync + 'static,
    ) -> JoinHandle<()> {
        let port = self.add(name);
        thread::spawn(move || {
            let settings = Settings { name: port.name.clone(), links: Some(port), ..Settings::default() };
            let codes = isola_hosted::run(settings, Vec::new(), |platform| {
                port.attach(platform);
                let main = main(port);
                spawn_task(async move {
                    main.await;
                    exit(0);
                })
                .detach();
                run()
            });
            port.end();
            assert_eq!(codes, [0], "the cell ends");
        })
    }
}

impl State {
    fn find(&self, name: &str) -> Option<&'static Port> {
        let is_live = |cell: &&&'static Port| !cell.has_ended.load(Ordering::Relaxed);
        self.cells.iter().filter(is_live).find(|cell| cell.name == name).copied()
    }

    fn at(&self, id: CellId) -> Option<&'static Port> {
        self.cells.iter().find(|cell| cell.id == id).copied()
    }
}

impl Port {
    /// Returns the cell's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sets the platform on which the cell runs, which gets its doorbells.
    pub fn attach(&self, platform: &'static Hosted) {
        let _ = self.platform.set(platform);
    }

    /// Ends the cell's links, as at its death: its peers find other contents in its memory.
    pub fn end(&self) {
        let state = self.machine.state();
        self.has_ended.store(true, Ordering::Relaxed);
        for (_, link) in self.table.iter().filter(|(_, link)| link.state() != LinkState::Free) {
            let (peer, slot) = link.peer();
            let theirs = state.at(peer).and_then(|peer| peer.table.get(slot));
            let keeps = |link: &&Link| link.survival() == Survival::Permitted && link.kept().len_bytes > 0;
            let is_kept = theirs.filter(keeps).is_some();
            for part in LinkPart::ALL {
                // The peer finds its copy there.
                if part == LinkPart::Shared && is_kept {
                    continue;
                }
                let words = state.memory.get(&link.lent(part).start.0).copied().unwrap_or_default();
                words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
            }
            // The supervisor, too, sends the doorbell last. It sets the state earlier, so a peer that looks at it without a
            // doorbell may still find the contents.
            self.close_at_peer(&state, link);
            link.set_state(LinkState::Free);
        }
    }

    fn close_at_peer(&self, state: &State, link: &Link) {
        let (peer, slot) = link.peer();
        let Some(peer) = state.at(peer) else { return };
        let theirs = peer.table.get(slot).filter(|theirs| theirs.peer().0 == self.id);
        if let Some(theirs) = theirs.filter(|theirs| theirs.state() != LinkState::Free) {
            theirs.set_state(LinkState::Closed);
        }
        peer.ring();
    }

    fn ring(&self) {
        self.table.note_change();
        if let Some(platform) = self.platform.get() {
            platform.interrupt(CoreIndex(0), DOORBELL_VECTOR);
        }
    }

    fn free_slot(&self) -> Option<(usize, &Link)> {
        self.table.iter().find(|(_, link)| link.state() == LinkState::Free)
    }

    fn link(&self, slot: usize, state: LinkState) -> Result<&Link, LinkRefusal> {
        let link = self.table.get(slot).filter(|link| link.state() == state);
        link.ok_or(LinkRefusal::WrongState)
    }

    fn serve(&self, number: u32, demand: LinkDemand) -> Result<usize, LinkRefusal> {
        let state = self.machine.state();
        let window = |memory: PhysRange, access| {
            Some(LinkWindow { page: 1, pages: (memory.len_bytes / PAGE_SIZE) as u32, access })
        };
        match demand {
            LinkDemand::Open { target, service, memory } => {
                let peer = state.find(&target).ok_or(LinkRefusal::NoSuchCell)?;
                if state.refusing.contains(&target) {
                    return Err(LinkRefusal::NotAccepted);
                }
                let (slot, link) = self.free_slot().ok_or(LinkRefusal::NoSlot)?;
                let (peer_slot, theirs) = peer.free_slot().ok_or(LinkRefusal::NoSlot)?;
                link.begin((peer.id, peer_slot), ApicId(0), number, &service);
                link.set_lent(LinkPart::Ring, memory);
                theirs.begin((self.id, slot), ApicId(0), 0, &service);
                link.set_state(LinkState::Waiting);
                theirs.set_state(LinkState::Invited);
                peer.ring();
                Ok(slot)
            }
            // No cell of this machine has a network device.
            LinkDemand::OpenNeighbour { .. } => Err(LinkRefusal::NoSuchCell),
            LinkDemand::Accept { slot, memory } => {
                let link = self.link(slot, LinkState::Invited)?;
                let (peer, peer_slot) = link.peer();
                let peer = state.at(peer).ok_or(LinkRefusal::NoSuchCell)?;
                let theirs = peer.link(peer_slot, LinkState::Waiting)?;
                link.set_lent(LinkPart::Ring, memory);
                link.set_window(LinkPart::Ring, window(theirs.lent(LinkPart::Ring), LinkAccess::Read));
                theirs.set_window(LinkPart::Ring, window(memory, LinkAccess::Read));
                link.set_state(LinkState::Open);
                theirs.set_state(LinkState::Open);
                peer.ring();
                Ok(slot)
            }
            LinkDemand::Keep { slot, memory } => {
                let link = self.link(slot, LinkState::Open)?;
                if link.survival() != Survival::Permitted {
                    return Err(LinkRefusal::NotSurviving);
                }
                let window = link.window(LinkPart::Shared).map(|window| window.len_bytes());
                assert_eq!(window, Some(memory.len_bytes), "the library asks for memory of the right length");
                link.set_kept(memory);
                Ok(slot)
            }
            LinkDemand::Share { slot, memory, access, survival } => {
                let link = self.link(slot, LinkState::Open)?;
                let peer = state.at(link.peer().0).ok_or(LinkRefusal::NoSuchCell)?;
                let theirs = peer.link(link.peer().1, LinkState::Open)?;
                theirs.set_shared(false);
                link.set_lent(LinkPart::Shared, memory);
                theirs.set_window(LinkPart::Shared, window(memory, access));
                theirs.set_survival(survival);
                theirs.set_shared(true);
                peer.ring();
                Ok(slot)
            }
            LinkDemand::Unshare { slot } => {
                let link = self.link(slot, LinkState::Open)?;
                let peer = state.at(link.peer().0).ok_or(LinkRefusal::NoSuchCell)?;
                peer.link(link.peer().1, LinkState::Open)?.set_shared(false);
                link.set_lent(LinkPart::Shared, PhysRange::default());
                peer.ring();
                Ok(slot)
            }
            LinkDemand::Close { slot } => {
                let link = self.table.get(slot).filter(|link| link.state() != LinkState::Free);
                let link = link.ok_or(LinkRefusal::WrongState)?;
                if link.state() != LinkState::Closed {
                    self.close_at_peer(&state, link);
                }
                link.set_state(LinkState::Free);
                Ok(slot)
            }
        }
    }

    /// Returns the number of doorbells that the cell has sent.
    pub fn doorbells(&self) -> usize {
        self.doorbells.load(Ordering::Relaxed)
    }

    /// Makes the next allocations those of memory in the image, which no peer can map.
    pub fn allocate_in_image(&self, blocks: usize) {
        self.image_blocks.store(blocks, Ordering::Relaxed);
    }

    /// Makes the answers to the cell's requests come late, as those of a supervisor on a busy core do.
    pub fn answer_late(&self) {
        self.answers_late.store(true, Ordering::Relaxed);
    }

    /// Returns the number of allocations in the image that are to come.
    pub fn image_blocks(&self) -> usize {
        self.image_blocks.load(Ordering::Relaxed)
    }

    /// Returns the number of slots in use.
    pub fn links_in_use(&self) -> usize {
        self.table.iter().filter(|(_, link)| link.state() != LinkState::Free).count()
    }
}

impl LinkPort for Port {
    fn table(&self) -> &'static LinkTable {
        self.machine.state().at(self.id).map(|port| &*port.table).expect("the cell is of the machine")
    }

    fn send(&self, demand: &LinkDemand) -> u32 {
        let number = self.request.put(demand);
        let answer = self.serve(number, self.request.get().expect("the demand is intelligible"));
        if self.answers_late.load(Ordering::Relaxed) {
            let port = self.machine.state().at(self.id).expect("the cell is of the machine");
            thread::spawn(move || {
                thread::sleep(ANSWER_DELAY);
                port.table.set_answer(number, answer);
                thread::sleep(BELL_DELAY);
                port.ring();
            });
        } else {
            self.table.set_answer(number, answer);
            self.ring();
        }
        number
    }

    fn can_share(&self, words: &[AtomicU64]) -> bool {
        let left = self.image_blocks.load(Ordering::Relaxed);
        let is_of_image = left > 0;
        self.image_blocks.store(left.saturating_sub(1), Ordering::Relaxed);
        !is_of_image && words.as_ptr().addr().is_multiple_of(PAGE_SIZE as usize)
    }

    fn range_of(&self, words: &'static [AtomicU64]) -> PhysRange {
        let range = PhysRange::new(PhysAddr(words.as_ptr().addr() as u64), size_of_val(words) as u64);
        assert!(range.start.0.is_multiple_of(PAGE_SIZE) && range.len_bytes.is_multiple_of(PAGE_SIZE));
        self.machine.state().memory.insert(range.start.0, words);
        range
    }

    fn peer_words(&self, slot: usize, part: LinkPart) -> Option<PeerWords> {
        let link = self.link(slot, LinkState::Open).ok()?;
        if part == LinkPart::Shared && !link.is_shared() {
            return None;
        }
        let state = self.machine.state();
        let lent = state.at(link.peer().0)?.table.get(link.peer().1)?.lent(part);
        let words = state.memory.get(&lent.start.0).copied()?;
        Some((words, link.window(part)?.access))
    }

    fn ring_doorbell(&self, slot: usize) {
        self.doorbells.fetch_add(1, Ordering::Relaxed);
        if let Ok(link) = self.link(slot, LinkState::Open)
            && let Some(peer) = self.machine.state().at(link.peer().0)
            && let Some(platform) = peer.platform.get()
        {
            platform.interrupt(CoreIndex(0), DOORBELL_VECTOR);
        }
    }

    fn open_block_device(
        &self,
        _: usize,
        _: DeviceOffer,
        _: &'static [AtomicU64],
    ) -> Result<(BlockPort, DriverSetup), String> {
        Err("a cell of this machine has no drivers".to_owned())
    }

    fn open_network_device(
        &self,
        _: usize,
        _: DeviceOffer,
        _: &'static [AtomicU64],
    ) -> Result<(NetworkPort, DriverSetup), String> {
        Err("a cell of this machine has no drivers".to_owned())
    }
}
