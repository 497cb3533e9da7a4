//! Costs of calls: of an Ebb, and of alternatives (EbbRT 4.1.1). The method's effect is unknown to the compiler.

use crate::say;
use core::cell::Cell;
use core::hint::black_box;
use isola::ebbs::{DynamicEbb, Ebb, Representative, RootedRepresentative, cycles};
use isola::prelude::*;

/// The calls of a round.
const CALLS: u64 = 1_000;

const ROUNDS: u32 = 1_000;

static EBB: Ebb<Object> = Ebb::new();

struct Object {
    _state: Cell<u64>,
}

impl Object {
    #[inline(always)]
    fn inlined(&self) {
        black_box(());
    }

    #[inline(never)]
    fn not_inlined(&self) {
        black_box(());
    }
}

impl Representative for Object {
    fn create() -> Self {
        Self { _state: Cell::new(0) }
    }
}

impl RootedRepresentative for Object {
    type Root = ();

    fn create((): &()) -> Self {
        <Self as Representative>::create()
    }
}

trait Virtual {
    fn called(&self);
}

impl Virtual for Object {
    fn called(&self) {
        black_box(());
    }
}

struct Other;

impl Virtual for Other {
    fn called(&self) {
        black_box(());
    }
}

/// Measures all kinds of calls.
pub fn measure() {
    let object = <Object as Representative>::create();
    let object = black_box(&object);
    let objects: [&dyn Virtual; 2] = [object, &Other];
    let chosen = black_box(objects)[black_box(0)];
    round("call-inlined", || object.inlined());
    round("call-ebb", || EBB.inlined());
    // With a lookup for each call, as in an event with a single call.
    round("call-ebb-afresh", || black_box(&EBB).inlined());
    round("call-inlined-afresh", || black_box(object).inlined());
    round("call-not-inlined", || object.not_inlined());
    round("call-virtual", || chosen.called());
    match DynamicEbb::<Object>::new(()) {
        Ok(ebb) => round("call-dynamic-ebb", || ebb.inlined()),
        Err(error) => println!("{error}"),
    }
}

#[inline(always)]
fn round(name: &str, call: impl Fn()) {
    let mut least = u64::MAX;
    for _ in 0..ROUNDS {
        let start = cycles();
        for _ in 0..CALLS {
            call();
        }
        least = least.min(cycles() - start);
    }
    say(name, least, CALLS);
}
