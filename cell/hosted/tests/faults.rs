//! Page faults in a process are invisible to the faulting code.

use isola_hosted::Settings;
use isola_memory::regions::{FillError, Filler, OnDemand, PageSize, Pager, Region};
use std::fs::File;
use std::io;

/// A pager that makes a failing system call.
struct Failing(OnDemand);

impl Pager for Failing {
    fn fault(&self, offset: usize, filler: &Filler<'_>) -> Result<(), FillError> {
        let filled = self.0.fault(offset, filler);
        assert!(File::open("/nowhere").is_err());
        filled
    }
}

#[test]
fn a_page_fault_preserves_errno() {
    isola_hosted::run(Settings::default(), Vec::new(), |_| {
        let region = Region::new("failing", 1 << 20, Failing(OnDemand::new(PageSize::FourKib))).unwrap();
        // A different error from the pager's.
        assert!(File::open("/dev/null/nowhere").is_err());
        let before = io::Error::last_os_error().raw_os_error();
        let byte = std::hint::black_box(&region)[5];
        let after = io::Error::last_os_error().raw_os_error();
        assert_eq!((byte, region.faults()), (0, 1));
        assert_eq!((before, after), (Some(libc::ENOTDIR), Some(libc::ENOTDIR)));
    });
}
