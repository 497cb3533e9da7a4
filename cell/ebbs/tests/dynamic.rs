//! Ebbs that are created and dropped at run time.

use isola_ebbs::{DynamicEbb, EbbId, IdError, MachineId, RootedRepresentative, current_core};
use isola_hosted::Settings;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Barrier};

/// A sum with one part per core.
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
fn dropping_the_last_reference_drops_all_representatives() {
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
            assert_eq!(living.load(Ordering::Relaxed), 24, "one representative per core");
            shared.lock().unwrap().take();
        }
    });
    assert_eq!(living.load(Ordering::Relaxed), 0, "a representative was not dropped");
}

#[test]
fn dynamic_ids_are_unique_and_contain_their_machine() {
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
fn a_machine_gets_its_number_once_and_before_it_issues_ids() {
    let (second, third) = (MachineId::new(2).unwrap(), MachineId::new(3).unwrap());
    isola_hosted::run(cores(1), Vec::new(), |_| {
        assert_eq!(second.become_here(), Ok(()));
        assert_eq!(second.become_here(), Ok(()));
        assert_eq!(third.become_here(), Err(IdError::Numbered));
        assert_eq!(EbbId::fresh().unwrap().machine(), Some(second));
        assert_eq!(MachineId::here(), second);
    });
    isola_hosted::run(cores(1), Vec::new(), |_| {
        assert_eq!(EbbId::fresh().unwrap().machine(), Some(MachineId::FIRST));
        assert_eq!(second.become_here(), Err(IdError::Numbered), "the machine has issued an id as the first");
        assert_eq!(MachineId::FIRST.become_here(), Ok(()));
    });
}
