//! An application replaces the factory of an Ebb.

use isola_ebbs::{CellEbb, Ebb, EbbInUse, Representative};
use isola_hosted::Settings;

trait Console: Send + Sync {
    fn name(&self) -> &'static str;
}

struct Plain;
struct Own;

impl Console for Plain {
    fn name(&self) -> &'static str {
        "plain"
    }
}

impl Console for Own {
    fn name(&self) -> &'static str {
        "own"
    }
}

impl Representative for Box<dyn Console> {
    fn create() -> Self {
        Box::new(Plain)
    }
}

static KEPT: Ebb<Box<dyn Console>> = Ebb::new();
static REPLACED: Ebb<Box<dyn Console>> = Ebb::new();
static REPLACED_FOR_ALL: CellEbb<Box<dyn Console>> = CellEbb::new();

#[test]
fn a_factory_is_replaceable_before_the_first_use_only() {
    isola_hosted::run(Settings::default(), Vec::new(), |_| {
        assert_eq!(REPLACED.replace(|| Box::new(Own)), Ok(()));
        assert_eq!(REPLACED_FOR_ALL.replace(|| Box::new(Own)), Ok(()));
        assert_eq!([KEPT.name(), REPLACED.name(), REPLACED_FOR_ALL.name()], ["plain", "own", "own"]);
        assert_eq!(REPLACED.replace(|| Box::new(Plain)), Err(EbbInUse));
        assert_eq!(KEPT.replace(|| Box::new(Own)), Err(EbbInUse));
        assert_eq!(REPLACED.name(), "own");
    });
    // Each further cell has its own factories.
    isola_hosted::run(Settings { cores: 2, ..Settings::default() }, Vec::new(), |_| {
        assert_eq!([REPLACED.name(), REPLACED_FOR_ALL.name()], ["plain", "plain"]);
    });
}

static CIRCLE: Ebb<Circle> = Ebb::new();

struct Circle;

impl Representative for Circle {
    fn create() -> Self {
        let Circle = *CIRCLE;
        Self
    }
}

#[test]
#[should_panic(expected = "no core of a hosted cell panics")]
fn a_recursive_factory_panics() {
    isola_hosted::run(Settings::default(), Vec::new(), |_| {
        let Circle = *CIRCLE;
    });
}
