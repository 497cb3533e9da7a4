//! A test image: regions, with the pagers of the library OS and the application's own.
//!
//! The first argument selects the action: `check` runs checks that must pass, and ends with exit code 0; `touch PAGER
//! MIB` measures the time to touch that much memory; `sparse MIB UNTIL` uses scattered pages until the cell has only
//! UNTIL MiB; the others fail in one way, which ends the cell.
#![no_std]
#![no_main]

mod check;
mod faults;
mod sparse;
mod touch;

use isola::prelude::*;
use isola::regions::{Contents, FillError, Filler, FrameChoice, PageSize, Pager};

isola::app!(main);

/// The bytes of a small page.
const PAGE: usize = PageSize::FourKib.bytes();

async fn main(arguments: Arguments) -> ExitCode {
    match arguments.get(0) {
        Some("check") => check::all().await,
        Some("touch") => {
            let mib = arguments.get(2).and_then(|mib| mib.parse().ok()).unwrap_or(1);
            touch::touch_three_times(arguments.get(1).unwrap_or_default(), mib).await
        }
        Some("sparse") => {
            let mib = |index| arguments.get(index).and_then(|mib| mib.parse().ok()).unwrap_or(1);
            sparse::keep(mib(1), mib(2)).await
        }
        Some(fault) => {
            faults::cause(fault);
            println!("{fault} went well");
            ExitCode::FAILURE
        }
        None => ExitCode::USAGE,
    }
}

/// The application's own pager: every page begins with its number, as if it had been read from a file.
struct Numbered;

impl Pager for Numbered {
    fn fault(&self, offset: usize, filler: &Filler<'_>) -> Result<(), FillError> {
        let page = offset / PAGE;
        let mut write = |bytes: &mut [u8]| bytes[..8].copy_from_slice(&page.to_le_bytes());
        filler.fill(page * PAGE, PageSize::FourKib, FrameChoice::Any, Contents::Written(&mut write)).map(drop)
    }
}
