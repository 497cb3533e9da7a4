//! The `isola` command with real machines.
//!
//! What needs no machine is tested in `host/`, against a supervisor that is none.
//!
//! | module | what |
//! |---|---|
//! | [`life`] | machines and cells from their beginning to their end |
//! | [`foreground`] | commands that stay with what they run |
//! | [`hosted`] | applications as processes of this host |
//! | [`neighbours`] | what the network of a machine keeps apart |
//! | [`recovery`] | what was killed trips nobody up |
//! | [`sandbox`] | what QEMU may ask of the host |
//! | [`web`] | the web server and NetPIPE |

mod files;
mod foreground;
mod hosted;
mod life;
mod neighbours;
mod recovery;
mod sandbox;
mod web;
