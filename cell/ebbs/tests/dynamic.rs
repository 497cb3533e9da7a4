//! Ebbs that are made and torn down while cells run.

use isola_ebbs::{
    DynamicEbb, EbbId, Handover, MachineId, NoId, RootedRepresentative, current_core, fold_this_core,
};
use isola_hosted::Settings;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Barrier};

/// A sum whose parts are its cores'.
struct Sum {
    own: Cell<u32>,
    living: Arc<AtomicU32>,
}

impl RootedRepresentative for Sum {
    type Root = Arc<AtomicU32>;

    fn create(root: &Self::Root) -> Self {
        root.fetch_add(1, Ordering::Relaxed);
        Self { own: Cell::new(0), living: root.clone() }
    }

    fn fold(&self, ebb: &DynamicEbb<Self>) -> Option<Handover> {
        let (ebb, part) = (ebb.clone(), self.own.take());
        Some(Box::new(move || ebb.own.set(ebb.own.get() + part)))
    }
}

impl Drop for Sum {
    fn drop(&mut self) {
        self.living.fetch_sub(1, Ordering::Relaxed);
    }
}

fn cores(cores: usize) -> Settings {
    Settings { cores, ..Settings::default() }
}

#[test]
fn the_last_reference_tears_all_representatives_down() {
    let living = Arc::new(AtomicU32::new(0));
    let shared = std::sync::Mutex::new(None::<DynamicEbb<Sum>>);
    let (made, used) = (Barrier::new(24), Barrier::new(24));
    isola_hosted::run(cores(24), Vec::new(), |_| {
        if current_core().0 == 0 {
            *shared.lock().unwrap() = Some(DynamicEbb::new(living.clone()).unwrap());
        }
        made.wait();
        let ebb = shared.lock().unwrap().clone().unwrap();
        for turn in 1..=1_000 {
            ebb.own.set(ebb.own.get() + 1);
            assert_eq!(ebb.own.get(), turn);
        }
        used.wait();
        if current_core().0 == 0 {
            assert_eq!(living.load(Ordering::Relaxed), 24, "a representative a core");
            shared.lock().unwrap().take();
        }
    });
    assert_eq!(living.load(Ordering::Relaxed), 0, "none is left");
}

#[test]
fn a_core_that_leaves_hands_its_part_on() {
    let living = Arc::new(AtomicU32::new(0));
    let shared = std::sync::Mutex::new(None::<(DynamicEbb<Sum>, Vec<Handover>)>);
    let turn = Barrier::new(2);
    isola_hosted::run(cores(2), Vec::new(), |_| {
        if current_core().0 == 1 {
            let ebb = DynamicEbb::<Sum>::new(living.clone()).unwrap();
            ebb.own.set(5);
            // What was torn down before is not asked.
            drop({
                let gone = DynamicEbb::<Sum>::new(living.clone()).unwrap();
                gone.own.set(100);
                gone
            });
            let handovers = fold_this_core();
            assert_eq!((handovers.len(), ebb.own.get()), (1, 0));
            *shared.lock().unwrap() = Some((ebb.clone(), handovers));
            turn.wait();
            turn.wait();
            // The core came back: it is asked again.
            ebb.own.set(7);
            assert_eq!(fold_this_core().len(), 1);
        } else {
            turn.wait();
            let (ebb, handovers) = shared.lock().unwrap().take().unwrap();
            ebb.own.set(1);
            handovers.into_iter().for_each(|handover| handover());
            assert_eq!(ebb.own.get(), 6);
            drop(ebb);
            turn.wait();
        }
    });
    assert_eq!(living.load(Ordering::Relaxed), 0);
}

#[test]
fn ids_differ_between_cores_and_say_which_machine_gave_them_out() {
    let ids: Vec<BTreeSet<EbbId>> = isola_hosted::run(cores(8), Vec::new(), |_| {
        if current_core().0 == 0 {
            assert_eq!(MachineId::here(), MachineId::FIRST);
        }
        (0..1_000).map(|_| EbbId::fresh().unwrap()).collect()
    });
    let all: BTreeSet<EbbId> = ids.into_iter().flatten().collect();
    assert_eq!(all.len(), 8_000);
    assert!(all.iter().all(|id| id.machine() == Some(MachineId::FIRST)));
}

#[test]
fn a_machine_is_numbered_once_and_before_it_gives_out_ids() {
    let (second, third) = (MachineId::new(2).unwrap(), MachineId::new(3).unwrap());
    isola_hosted::run(cores(1), Vec::new(), |_| {
        assert_eq!(second.become_here(), Ok(()));
        assert_eq!(second.become_here(), Ok(()));
        assert_eq!(third.become_here(), Err(NoId::Numbered));
        assert_eq!(EbbId::fresh().unwrap().machine(), Some(second));
        assert_eq!(MachineId::here(), second);
    });
    isola_hosted::run(cores(1), Vec::new(), |_| {
        assert_eq!(EbbId::fresh().unwrap().machine(), Some(MachineId::FIRST));
        assert_eq!(second.become_here(), Err(NoId::Numbered), "an id of the first is out");
        assert_eq!(MachineId::FIRST.become_here(), Ok(()));
    });
}
