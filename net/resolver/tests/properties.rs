//! The fuzz targets' entry points on random input from proptest, in every run of the tests.

#[path = "../../../fuzz/src/resolver.rs"]
mod entries;

mod common;

use common::{A, CNAME, name, record, soa};
use proptest::prelude::*;

/// Whole and malformed records, so that random input gets beyond the first of them.
fn records() -> impl Strategy<Value = Vec<u8>> {
    let part = prop_oneof![
        Just(record("a.example", A, 60, &[1, 2, 3, 4])),
        Just(record("a.example", CNAME, 60, &name("b.example"))),
        Just(record("b.example", CNAME, 60, &name("a.example"))),
        Just(record("b.example", CNAME, 60, &[0xc0, 12])),
        Just(soa("example", 60, 60)),
        Just(vec![0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 1, 2, 3, 4]),
        Just(vec![0x7f]),
        prop::collection::vec(any::<u8>(), 0..24),
    ];
    let parts = prop::collection::vec(part, 0..8);
    (prop::collection::vec(any::<u8>(), 5), parts).prop_map(|(head, parts)| [head, parts.concat()].concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_answers(data in prop::collection::vec(any::<u8>(), 0..300)) {
        entries::answers(&data);
    }

    #[test]
    fn any_records(data in records()) {
        entries::answers(&data);
        entries::lookups(&data);
    }

    #[test]
    fn any_conversations(data in prop::collection::vec(any::<u8>(), 0..600)) {
        entries::lookups(&data);
    }
}
