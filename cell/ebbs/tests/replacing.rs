//! An application puts its own component in the place of another.

use isola_ebbs::{CellEbb, Ebb, InUse, Representative};
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
fn an_application_names_its_own_before_first_use_and_not_after() {
    isola_hosted::run(Settings::default(), Vec::new(), |_| {
        assert_eq!(REPLACED.replace(|| Box::new(Own)), Ok(()));
        assert_eq!(REPLACED_FOR_ALL.replace(|| Box::new(Own)), Ok(()));
        assert_eq!([KEPT.name(), REPLACED.name(), REPLACED_FOR_ALL.name()], ["plain", "own", "own"]);
        assert_eq!(REPLACED.replace(|| Box::new(Plain)), Err(InUse));
        assert_eq!(KEPT.replace(|| Box::new(Own)), Err(InUse));
        assert_eq!(REPLACED.name(), "own");
    });
    // Every further cell decides for itself.
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
fn a_representative_that_needs_itself_is_found_out() {
    isola_hosted::run(Settings::default(), Vec::new(), |_| {
        let Circle = *CIRCLE;
    });
}
