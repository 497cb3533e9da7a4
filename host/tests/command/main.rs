//! Tests of the `isola` command as a user sees it: arguments, output, exit code, and remaining files.
//!
//! No machine is booted: `ISOLA_QEMU` is a script that runs this test program again as [`fake_qemu`], which has QEMU's
//! sockets and a supervisor that speaks the real protocol. Images are a few hundred bytes that pass as cell images. The
//! tests in `tests/` cover the real QEMU and the real supervisor.

mod capture;
mod cells;
mod elastic;
mod fake_qemu;
mod fake_supervisor;
mod following;
mod machines;
mod metrics;
mod ports;
mod profile;
mod prometheus;
mod pty;
mod recovery;
mod resize;
mod sandbox;
mod screen;
mod signing;
mod stats;
mod terminal;
mod trace;
mod usage;
