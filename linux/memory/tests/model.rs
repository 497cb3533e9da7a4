//! Random calls of several processes, compared with a model that has a byte and rights for each page.

mod common;

use common::{PRIVATE, Process};
use isola_linux_abi::numbers::{
    MADV_DOFORK, MADV_DONTFORK, MADV_DONTNEED, MADV_FREE, MADV_KEEPONFORK, MADV_WIPEONFORK, MAP_ANONYMOUS,
    MAP_FIXED, MAP_PRIVATE, MAP_SHARED, MREMAP_DONTUNMAP, MREMAP_FIXED, MREMAP_MAYMOVE, PROT_EXEC, PROT_READ,
    PROT_WRITE,
};
use isola_linux_memory::{Errno, FaultError, MapObject, MapRequest, Protection, RemapRequest, SharedMemory};
use isola_user_mode::{Access, PAGE_SIZE};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The pages that the calls use.
const BASE: u64 = 0x10_0000_0000;
const PAGES: u64 = 24;

/// The pages of the object that all processes map.
const OBJECT_PAGES: u64 = 8;

const MOST_PROCESSES: usize = 4;

#[derive(Clone, Copy, Debug)]
enum Backing {
    Private,
    Shared,
    /// The common object, from this page on.
    Object {
        first: u64,
        is_shared: bool,
    },
}

#[derive(Clone, Debug)]
enum Call {
    Map {
        page: u64,
        count: u64,
        protection: u32,
        backing: Backing,
    },
    Unmap {
        page: u64,
        count: u64,
    },
    Protect {
        page: u64,
        count: u64,
        protection: u32,
    },
    Move {
        page: u64,
        count: u64,
        to: u64,
        keeps_old: bool,
    },
    Advise {
        page: u64,
        count: u64,
        advice: u32,
    },
    Write {
        page: u64,
        value: u8,
    },
    /// By the kernel.
    Copy {
        page: u64,
        value: u8,
    },
    Execute {
        page: u64,
    },
    Read {
        page: u64,
    },
    Punch {
        first: u64,
        count: u64,
    },
    Fork,
    Exit,
}

fn calls() -> impl Strategy<Value = Vec<(usize, Call)>> {
    let page = || 0..PAGES;
    let count = || 1..8_u64;
    let protection = || {
        prop_oneof![
            1 => Just(0),
            1 => Just(PROT_READ),
            4 => Just(PROT_READ | PROT_WRITE),
            1 => Just(PROT_READ | PROT_EXEC),
            1 => Just(PROT_READ | PROT_WRITE | PROT_EXEC),
        ]
    };
    let backing = prop_oneof![
        3 => Just(Backing::Private),
        1 => Just(Backing::Shared),
        2 => (0..OBJECT_PAGES, any::<bool>()).prop_map(|(first, is_shared)| Backing::Object { first, is_shared }),
    ];
    let advice = proptest::sample::select(vec![
        MADV_DONTNEED,
        MADV_FREE,
        MADV_DONTFORK,
        MADV_DOFORK,
        MADV_WIPEONFORK,
        MADV_KEEPONFORK,
    ]);
    let call = prop_oneof![
        4 => (page(), count(), protection(), backing)
            .prop_map(|(page, count, protection, backing)| Call::Map { page, count, protection, backing }),
        2 => (page(), count()).prop_map(|(page, count)| Call::Unmap { page, count }),
        4 => (page(), count(), protection())
            .prop_map(|(page, count, protection)| Call::Protect { page, count, protection }),
        3 => (page(), count(), page(), any::<bool>())
            .prop_map(|(page, count, to, keeps_old)| Call::Move { page, count, to, keeps_old }),
        3 => (page(), count(), advice).prop_map(|(page, count, advice)| Call::Advise { page, count, advice }),
        10 => (page(), any::<u8>()).prop_map(|(page, value)| Call::Write { page, value }),
        4 => (page(), any::<u8>()).prop_map(|(page, value)| Call::Copy { page, value }),
        1 => page().prop_map(|page| Call::Execute { page }),
        6 => page().prop_map(|page| Call::Read { page }),
        1 => (0..OBJECT_PAGES, count()).prop_map(|(first, count)| Call::Punch { first, count }),
        2 => Just(Call::Fork),
        1 => Just(Call::Exit),
    ];
    proptest::collection::vec((0..MOST_PROCESSES, call), 1..80)
}

/// The model of a page.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Page {
    protection: u32,
    /// The object and the index in it, and whether writes change it.
    object: Option<(usize, u64, bool)>,
    /// The byte of the process's own copy.
    own: Option<u8>,
    dont_fork: bool,
    wipe_on_fork: bool,
}

#[derive(Clone, Default)]
struct Model {
    pages: BTreeMap<u64, Page>,
}

impl Model {
    fn continues(&self, page: u64) -> bool {
        let (Some(first), Some(second)) = (self.pages.get(&page), self.pages.get(&(page + 1))) else {
            return false;
        };
        let attributes = |page: &Page| (page.protection, page.dont_fork, page.wipe_on_fork);
        let next = first.object.map(|(id, index, is_shared)| (id, index + 1, is_shared));
        attributes(first) == attributes(second) && next == second.object
    }
}

/// The processes and their models.
struct World {
    processes: Vec<(Process, Model)>,
    object: Arc<SharedMemory>,
    /// The bytes of all objects; the first is the common one.
    objects: Vec<BTreeMap<u64, u8>>,
}

impl World {
    fn new() -> Self {
        let process = Process::new();
        let object = SharedMemory::new(b"object", OBJECT_PAGES * PAGE_SIZE, process.budget.clone());
        Self { processes: vec![(process, Model::default())], object, objects: vec![BTreeMap::new()] }
    }

    /// Returns the byte of a page; `None` if it is behind the end of the object.
    fn value(&self, page: &Page) -> Option<u8> {
        match (page.own, page.object) {
            (Some(own), _) => Some(own),
            (None, Some((0, index, _))) if index >= OBJECT_PAGES => None,
            (None, Some((id, index, _))) => Some(self.objects[id].get(&index).copied().unwrap_or(0)),
            (None, None) => Some(0),
        }
    }

    fn execute(&mut self, who: usize, call: &Call) {
        let who = who % self.processes.len();
        match *call {
            Call::Map { page, count, protection, backing } => self.map(who, page, count, protection, backing),
            Call::Unmap { page, count } => {
                let (process, model) = &mut self.processes[who];
                assert_eq!(process.unmap(address(page), count), Ok(()));
                model.pages.retain(|at, _| !(page..page + count).contains(at));
            }
            Call::Protect { page, count, protection } => {
                let (process, model) = &mut self.processes[who];
                let mut expected = Ok(());
                for at in page..page + count {
                    let Some(page) = model.pages.get_mut(&at) else {
                        expected = Err(Errno::ENOMEM);
                        break;
                    };
                    page.protection = protection;
                }
                assert_eq!(process.protect(address(page), count, protection), expected);
            }
            Call::Move { page, count, to, keeps_old } => self.relocate(who, page, count, to, keeps_old),
            Call::Advise { page, count, advice } => self.advise(who, page, count, advice),
            Call::Write { page, value } | Call::Copy { page, value } => {
                let by_kernel = matches!(call, Call::Copy { .. });
                self.write(who, page, value, by_kernel);
            }
            Call::Execute { page } => {
                let expected = self.expected(who, page, |protection| protection & PROT_EXEC != 0);
                let result = self.processes[who].0.execute(address(page) + 1);
                assert_eq!(result, expected.map(|_| ()));
            }
            Call::Read { page } => self.read(who, page),
            Call::Punch { first, count } => {
                let call = self.object.punch_hole(first * PAGE_SIZE, count * PAGE_SIZE);
                self.processes[who].0.run(call);
                self.objects[0].retain(|index, _| !(first..first + count).contains(index));
            }
            Call::Fork if self.processes.len() < MOST_PROCESSES => {
                let (process, model) = &self.processes[who];
                let (child, mut copy) = (process.fork(), model.clone());
                copy.pages.retain(|_, page| !page.dont_fork);
                copy.pages.values_mut().filter(|page| page.wipe_on_fork).for_each(|page| page.own = None);
                self.processes.push((child, copy));
            }
            Call::Exit if self.processes.len() > 1 => drop(self.processes.remove(who)),
            Call::Fork | Call::Exit => (),
        }
    }

    fn map(&mut self, who: usize, page: u64, count: u64, protection: u32, backing: Backing) {
        let permitted = Protection::ALL;
        let object = MapObject { source: self.object.clone(), permitted, path: None };
        let (flags, offset, object, modelled) = match backing {
            Backing::Private => (PRIVATE, 0, None, None),
            Backing::Shared => {
                self.objects.push(BTreeMap::new());
                (MAP_SHARED | MAP_ANONYMOUS, 0, None, Some((self.objects.len() - 1, 0, true)))
            }
            Backing::Object { first, is_shared } => {
                let flags = if is_shared { MAP_SHARED } else { MAP_PRIVATE };
                (flags, first * PAGE_SIZE, Some(object), Some((0, first, is_shared)))
            }
        };
        let request = MapRequest {
            address: address(page),
            len: count * PAGE_SIZE - 1,
            protection,
            flags: flags | MAP_FIXED,
            offset,
            object,
            name: "",
        };
        let (process, model) = &mut self.processes[who];
        assert_eq!(process.map_with(request), Ok(address(page)));
        for number in 0..count {
            let object = modelled.map(|(id, index, is_shared)| (id, index + number, is_shared));
            let new = Page { protection, object, own: None, dont_fork: false, wipe_on_fork: false };
            model.pages.insert(page + number, new);
        }
    }

    fn relocate(&mut self, who: usize, page: u64, count: u64, to: u64, keeps_old: bool) {
        let (process, model) = &mut self.processes[who];
        let request = RemapRequest {
            address: address(page),
            len: count * PAGE_SIZE,
            new_len: count * PAGE_SIZE,
            flags: MREMAP_MAYMOVE | MREMAP_FIXED | if keeps_old { MREMAP_DONTUNMAP } else { 0 },
            new_address: address(to),
        };
        let expected = if !model.pages.contains_key(&page) {
            Err(Errno::EFAULT)
        } else if to < page + count && page < to + count {
            Err(Errno::EINVAL)
        } else if !(page..page + count - 1).all(|at| model.continues(at)) {
            Err(Errno::EFAULT)
        } else {
            Ok(address(to))
        };
        assert_eq!(process.run(process.memory.remap(request)), expected);
        if expected.is_err() {
            return;
        }
        for number in 0..count {
            let Some(moved) = model.pages.get(&(page + number)).copied() else { continue };
            model.pages.insert(to + number, moved);
            if keeps_old {
                model.pages.insert(page + number, Page { own: None, ..moved });
            } else {
                model.pages.remove(&(page + number));
            }
        }
    }

    fn advise(&mut self, who: usize, page: u64, count: u64, advice: u32) {
        let (process, model) = &mut self.processes[who];
        let mut expected = Ok(());
        for at in page..page + count {
            let Some(page) = model.pages.get_mut(&at) else {
                expected = Err(Errno::ENOMEM);
                continue;
            };
            let refused = page.object.is_some() && matches!(advice, MADV_FREE | MADV_WIPEONFORK);
            if refused {
                expected = Err(Errno::EINVAL);
                break;
            }
            match advice {
                MADV_DONTNEED | MADV_FREE => page.own = None,
                MADV_DONTFORK => page.dont_fork = true,
                MADV_DOFORK => page.dont_fork = false,
                MADV_WIPEONFORK => page.wipe_on_fork = true,
                _ => page.wipe_on_fork = false,
            }
        }
        assert_eq!(process.run(process.memory.advise(address(page), count * PAGE_SIZE, advice)), expected);
    }

    fn write(&mut self, who: usize, page: u64, value: u8, by_kernel: bool) {
        let expected = self.expected(who, page, |protection| protection & PROT_WRITE != 0);
        let process = &mut self.processes[who].0;
        if by_kernel {
            let result = process.run(process.memory.write_bytes(address(page), &[value]));
            assert_eq!(result, expected.map(|_| ()).map_err(FaultError::errno));
        } else {
            assert_eq!(process.store(address(page), &[value]), expected.map(|_| ()));
        }
        if expected.is_err() {
            return;
        }
        let Some(written) = self.processes[who].1.pages.get_mut(&page) else { return };
        match written.object {
            Some((id, index, true)) => drop(self.objects[id].insert(index, value)),
            _ => written.own = Some(value),
        }
    }

    fn read(&mut self, who: usize, page: u64) {
        let expected = self.expected(who, page, |protection| protection != 0);
        assert_eq!(self.processes[who].0.load(address(page)), expected, "page {page} of process {who}");
        let process = &self.processes[who].0;
        let result = process.run(process.memory.read_bytes::<1>(address(page)));
        assert_eq!(result, expected.map(|byte| [byte]).map_err(FaultError::errno));
    }

    /// Returns the byte that an access gets.
    fn expected(&self, who: usize, page: u64, permits: impl Fn(u32) -> bool) -> Result<u8, FaultError> {
        let page = self.processes[who].1.pages.get(&page).ok_or(FaultError::NotMapped)?;
        if !permits(page.protection) {
            return Err(FaultError::NotPermitted);
        }
        self.value(page).ok_or(FaultError::NoContents)
    }

    fn check(&mut self) {
        for who in 0..self.processes.len() {
            for page in 0..PAGES + 8 {
                self.read(who, page);
            }
            let (process, model) = &self.processes[who];
            let mut own = 0;
            for mapping in process.memory.mappings() {
                for page in (mapping.start..mapping.end).step_by(PAGE_SIZE as usize) {
                    let modelled = model.pages.get(&((page - BASE) / PAGE_SIZE)).expect("the model has it");
                    assert_eq!(Protection::from_bits(modelled.protection), mapping.protection);
                    assert_eq!(modelled.object.is_some(), mapping.object.is_some());
                    assert_eq!(modelled.dont_fork, mapping.attributes.dont_fork);
                }
                let usage = process.memory.mapping_usage(&mapping);
                own += usage.private + usage.shared;
            }
            let usage = process.memory.usage();
            assert_eq!(usage.mapped, model.pages.len() as u64);
            let modelled = model.pages.values().filter(|page| page.own.is_some()).count() as u64;
            assert_eq!((usage.resident.anonymous, own), (modelled, modelled), "own pages of {who}");
        }
    }
}

fn address(page: u64) -> u64 {
    BASE + page * PAGE_SIZE
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn processes_see_what_the_model_sees(calls in calls()) {
        let mut world = World::new();
        let budget = world.processes[0].0.budget.clone();
        for (who, call) in &calls {
            world.execute(*who, call);
            if matches!(call, Call::Fork | Call::Move { .. } | Call::Exit) {
                world.check();
            }
        }
        world.check();
        drop(world);
        prop_assert_eq!(budget.left(), 1000, "all frames were given back");
    }

    #[test]
    fn hostile_arguments_are_errors(
        address in hostile(),
        len in hostile(),
        other in hostile(),
        protection in any::<u32>(),
        flags in any::<u32>(),
    ) {
        let mut process = Process::new();
        let kept = process.map_anonymous(2);
        process.store(kept, b"kept").expect("it is writable");
        let memory = process.memory.clone();
        let mut request =
            MapRequest { address, len: len.min(1 << 30), protection, flags, offset: other, ..MapRequest::default() };
        let _any = process.map_with(request.clone());
        request.flags = PRIVATE | (flags & MAP_FIXED);
        request.len = len;
        if address.checked_add(len).is_none_or(|end| end <= kept) {
            let _any = process.map_with(request);
        }
        let _any = process.run(memory.protect(address, len, protection & 7));
        let _any = process.run(memory.advise(address, len, flags % 26));
        let _any = process.run(memory.sync(address, len, flags % 8));
        let _any = process.run(memory.buffer(address, len.min(1 << 20), Access::Read));
        let _any = process.run(memory.read_bytes::<16>(address));
        let _any = process.run(memory.string(address, 4096));
        let _any = process.run(memory.buffers(address, len, Access::Write));
        let _any = memory.futex_key(address, flags & 1 != 0);
        let _any = process.run(memory.futex_word(address, Access::Write));
        let _any = process.run(memory.fault(address, Access::Write));
        let _any = memory.unlock(address, len);
        let remap = RemapRequest { address, len, new_len: other, flags: flags % 8, new_address: len };
        let _any = process.run(memory.remap(remap));
        let _any = process.run(memory.set_break(address));
        let _any = process.run(memory.unmap(address, len));
        let usage = memory.usage();
        let mapped: u64 = memory.mappings().iter().map(|mapping| mapping.pages()).sum();
        prop_assert_eq!(usage.mapped, mapped);
    }
}

/// Numbers near the limits.
fn hostile() -> impl Strategy<Value = u64> {
    let near = |number: u64| (0..3 * PAGE_SIZE).prop_map(move |offset| number.wrapping_add(offset));
    prop_oneof![
        near(0),
        near(BASE),
        near(isola_user_mode::USER_END - PAGE_SIZE),
        near(u64::MAX - PAGE_SIZE),
        near(1 << 63),
        (0..64_u32).prop_map(|shift| 1 << shift),
        (0..64_u64).prop_map(|page| page * PAGE_SIZE),
        any::<u64>(),
    ]
}
