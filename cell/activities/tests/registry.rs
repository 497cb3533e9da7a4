//! The tree of activities, and their number.

use isola_abi::id::ActivityId;
use isola_abi::query::ActivityTraffic;
use isola_activities::{
    APPLICATION, ActivityError, INFRASTRUCTURE, MAX_DEPTH, PRIVATE_NAME_LEN, Usage, counters, end,
    generation, list, name_of, named, parent_of, private, register, register_under, rename, start, traffic,
    traffic_of_ended, usage_of,
};
use isola_ebbs::platform;
use isola_hosted::Settings;
use proptest::prelude::*;
use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::Ordering;

/// Runs `test` on the first core of a cell with one core.
fn in_cell(test: impl Fn() + Sync) {
    isola_hosted::run(Settings::default(), Vec::new(), |_| {
        start();
        test();
        0
    });
}

fn exists(activity: ActivityId) -> bool {
    generation(activity).is_in_use()
}

/// Uses cycles for an activity on this core, as the accounting does.
fn work(activity: ActivityId, cycles: u64) {
    traffic(activity, 0).unwrap().count(ActivityTraffic { received_bytes: cycles, ..Default::default() });
    let add = |activity: ActivityId| {
        counters(activity, 0).unwrap().cycles.fetch_add(cycles, Ordering::Relaxed);
    };
    if let Some(found) = private(activity, 0) {
        found.counters.unwrap().cycles.fetch_add(cycles, Ordering::Relaxed);
        add(found.slot());
    } else {
        add(activity);
    }
}

/// Returns the cycles that the activity and its descendants have used.
fn cycles(activity: ActivityId) -> u64 {
    list().into_iter().find(|one| one.id == activity).unwrap().usage.cycles
}

#[test]
fn the_predefined_activities_exist_and_cannot_end() {
    in_cell(|| {
        assert_eq!([name_of(APPLICATION), name_of(INFRASTRUCTURE)], ["application", "infrastructure"]);
        assert!(exists(APPLICATION) && exists(INFRASTRUCTURE));
        assert!(
            !end(APPLICATION) && !end(INFRASTRUCTURE) && !end(ActivityId(9)) && !end(ActivityId(u32::MAX))
        );
    });
}

#[test]
fn a_cell_has_more_activities_than_its_ledger_has_slots() {
    in_cell(|| {
        let slots = platform().ledger().records().len();
        let all: Vec<ActivityId> =
            (0..slots + 70_000).map(|number| register(&format!("tenant {number}")).unwrap()).collect();
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len());
        assert!(all[slots - 3].index() < slots && all[slots - 2].index() >= slots);
        let last = *all.last().unwrap();
        assert_eq!(name_of(last), format!("tenant {}", slots + 69_999));
        work(last, 1_000);
        assert_eq!((cycles(last), cycles(all[slots]), cycles(APPLICATION)), (1_000, 0, 1_000));
        assert_eq!(list().len(), all.len() + 2);
        assert!(all.iter().all(|activity| end(*activity)));
        assert_eq!(list().len(), 2);
        // Freed slots of the ledger are used again, and then freed entries.
        let again: Vec<ActivityId> = (0..slots).map(|_| register("again").unwrap()).collect();
        assert!(again[..slots - 2].iter().all(|activity| activity.index() < slots));
        assert!(again[slots - 2].index() < slots + 70_000 && cycles(again[slots - 2]) == 0);
    });
}

#[test]
fn an_activity_gets_another_name_and_keeps_its_usage() {
    in_cell(|| {
        let above = register("above").unwrap();
        let below = register_under(above, "12 sh").unwrap();
        work(below, 70);
        rename(below, &format!("12 {}\n", "x".repeat(100)));
        rename(above, "group");
        assert_eq!((name_of(above), name_of(below)), ("group".into(), format!("12 {}", "x".repeat(61))));
        assert_eq!((usage_of(above).cycles, usage_of(below).cycles), (70, 70));
        assert!(end(below));
        rename(below, "nobody");
        assert_eq!((usage_of(below), named("nobody").len()), (Usage::default(), 0));
        assert_eq!(usage_of(above).cycles, 70, "the use of an ended activity is its parent's");
    });
}

#[test]
fn usage_counts_for_all_activities_above() {
    in_cell(|| {
        let service = register("service").unwrap();
        let connection = register_under(service, "connection").unwrap();
        let queries = ["one", "two"].map(|name| register_under(connection, name).unwrap());
        assert_eq!([service, connection, queries[0]].map(parent_of), [None, Some(service), Some(connection)]);
        work(queries[0], 1_000);
        work(queries[1], 200);
        work(connection, 30);
        work(service, 4);
        assert_eq!([service, connection, queries[0], queries[1]].map(cycles), [1_234, 1_230, 1_000, 200]);
        assert!(end(queries[0]));
        assert_eq!(cycles(connection), 1_230, "what an ended activity has used remains that of its parent");
        // The next activity of the same entry begins with nothing.
        let next = (0..200).map(|_| register_under(connection, "next").unwrap()).find(|next| {
            let is_same = *next == queries[0];
            assert!(end(*next));
            is_same
        });
        assert!(next.is_some(), "the entry of an ended activity is used again");
        assert_eq!(cycles(connection), 1_230);
        let ids: Vec<ActivityId> = list().into_iter().map(|one| one.id).collect();
        let position = |of: ActivityId| ids.iter().position(|id| *id == of).unwrap();
        assert!(position(service) < position(connection) && position(connection) < position(queries[1]));
    });
}

#[test]
fn an_activity_with_children_remains_until_the_last_of_them_ends() {
    in_cell(|| {
        let service = register("service").unwrap();
        let connection = register_under(service, "connection").unwrap();
        let query = register_under(connection, "query").unwrap();
        assert!(end(connection) && !end(connection));
        assert!(exists(connection) && parent_of(query) == Some(connection));
        assert_eq!(register_under(connection, "late"), Err(ActivityError::NoSuchParent(connection)));
        assert!(end(service) && exists(service));
        work(query, 500);
        assert_eq!(cycles(service), 500);
        assert!(end(query));
        assert!(![service, connection, query].into_iter().any(exists));
        assert_eq!(register_under(service, "late"), Err(ActivityError::NoSuchParent(service)));
    });
}

#[test]
fn activities_nest_to_a_limit() {
    in_cell(|| {
        let mut above = register("level 0").unwrap();
        for level in 1..=MAX_DEPTH {
            above = register_under(above, &format!("level {level}")).unwrap();
        }
        assert_eq!(register_under(above, "too deep"), Err(ActivityError::TooDeep));
        work(above, 7);
        assert!(
            list().iter().filter(|one| (one.usage.cycles, one.usage.events) == (7, 0)).count() as u32
                > MAX_DEPTH
        );
    });
}

#[test]
fn names_are_cut_and_have_no_control_characters() {
    in_cell(|| {
        let service = register("a\nservice whose name is far too long").unwrap();
        assert_eq!(name_of(service), "aservice whose name is f");
        let peer = register_under(service, &format!("{}é\x1b[2J", "x".repeat(PRIVATE_NAME_LEN - 1))).unwrap();
        assert_eq!(name_of(peer), "x".repeat(PRIVATE_NAME_LEN - 1), "a letter is not cut in half");
        let twins = [0, 1].map(|_| register_under(service, "twin").unwrap());
        assert_eq!(named("twin"), twins);
        assert_eq!((named("nobody"), name_of(ActivityId(1 << 30))), (Vec::new(), String::new()));
    });
}

#[test]
fn work_for_an_id_that_no_activity_has_counts_as_the_applications() {
    in_cell(|| {
        for id in [platform().ledger().records().len() as u32, 1 << 30, u32::MAX] {
            let found = private(ActivityId(id), 0).unwrap();
            assert!(found.slot() == APPLICATION && found.counters.is_none(), "{id}");
            assert!(!exists(ActivityId(id)) && counters(ActivityId(id), 0).is_none());
        }
    });
}

/// A step of a random history. The numbers select among the activities that exist.
#[derive(Clone, Copy, Debug)]
enum Step {
    Register,
    RegisterUnder(usize),
    Work(usize, u64),
    End(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        1 => Just(Step::Register),
        4 => any::<usize>().prop_map(Step::RegisterUnder),
        4 => (any::<usize>(), 1..1_000_u64).prop_map(|(activity, cycles)| Step::Work(activity, cycles)),
        3 => any::<usize>().prop_map(Step::End),
    ];
    proptest::collection::vec(step, 1..200)
}

/// An activity as a history should have it.
struct Expected {
    parent: Option<ActivityId>,
    cycles: u64,
    has_ended: bool,
}

/// Plays a history in a cell, and compares the registry with a model after each step.
fn play(steps: &[Step]) {
    let mut model = BTreeMap::<ActivityId, Expected>::new();
    let mut all = 0;
    for step in steps {
        let ids: Vec<ActivityId> = model.keys().copied().collect();
        let chosen = |number: usize| ids.get(number % ids.len().max(1)).copied();
        let mut add = |id, parent| {
            let earlier = model.insert(id, Expected { parent, cycles: 0, has_ended: false });
            assert!(earlier.is_none(), "{id:?} has two activities");
        };
        match *step {
            Step::Register => add(register("top").unwrap(), None),
            Step::RegisterUnder(number) => {
                let Some(parent) = chosen(number) else { continue };
                match register_under(parent, "child") {
                    Ok(id) => add(id, Some(parent)),
                    Err(ActivityError::NoSuchParent(_)) => assert!(model[&parent].has_ended),
                    Err(error) => assert_eq!(error, ActivityError::TooDeep),
                }
            }
            Step::Work(number, cycles) => {
                let mut above = chosen(number);
                above.inspect(|activity| work(*activity, cycles));
                all += above.map_or(0, |_| cycles);
                while let Some(activity) = above {
                    let expected = model.get_mut(&activity).unwrap();
                    expected.cycles += cycles;
                    above = expected.parent;
                }
            }
            Step::End(number) => {
                let Some(activity) = chosen(number) else { continue };
                assert_eq!(end(activity), !model[&activity].has_ended);
                model.get_mut(&activity).unwrap().has_ended = true;
                while let Some(gone) = model
                    .iter()
                    .find(|(id, one)| one.has_ended && !model.values().any(|of| of.parent == Some(**id)))
                    .map(|(id, _)| *id)
                {
                    model.remove(&gone);
                }
            }
        }
        let found: BTreeMap<ActivityId, (Option<ActivityId>, u64)> = list()
            .into_iter()
            .filter(|one| one.id != APPLICATION && one.id != INFRASTRUCTURE)
            .map(|one| {
                assert_eq!(one.usage.traffic.received_bytes, one.usage.cycles, "{:?}", one.id);
                (one.id, (one.parent, one.usage.cycles))
            })
            .collect();
        let expected = model.iter().map(|(id, one)| (*id, (one.parent, one.cycles))).collect();
        assert_eq!(found, expected);
        let of_present =
            found.values().filter(|(parent, _)| parent.is_none()).map(|(_, used)| used).sum::<u64>();
        assert_eq!(of_present + traffic_of_ended().received_bytes, all, "all traffic is an activity's");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn any_history_leaves_a_tree_whose_usage_adds_up(steps in steps()) {
        in_cell(|| play(&steps));
    }
}
