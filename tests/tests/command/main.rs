//! The `isola` command with real machines.
//!
//! `host/` has the tests without machines, with a simulated supervisor.
//!
//! | module | contents |
//! |---|---|
//! | [`life`] | machines and cells from creation to removal |
//! | [`files`] | a native cell that serves the files of a hosted process |
//! | [`foreground`] | commands that last as long as their cell |
//! | [`hosted`] | applications as processes of this host |
//! | [`neighbours`] | isolation on a machine's network |
//! | [`recovery`] | recovery after machines and commands were killed |
//! | [`sandbox`] | the system call filter of QEMU |
//! | [`web`] | the web server and NetPIPE |

mod files;
mod foreground;
mod hosted;
mod life;
mod neighbours;
mod recovery;
mod sandbox;
mod volumes;
mod web;
