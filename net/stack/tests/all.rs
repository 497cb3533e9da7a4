//! The tests of the stack in simulated time, in one program: each program would compile and link the library and the
//! simulation once more. `cargo test -p isola-net-stack --test all losses` runs those of one file.
//!
//! Scripts, the tests beside Linux's own stack, and those of a process that does not use TCP are programs of their own.

mod address;
mod autoconf;
mod closing;
mod common;
mod congestion;
mod cores;
mod drops;
mod ecn;
mod ends;
mod floods;
mod fragments;
mod frame_forms;
mod handshake;
mod header_prediction;
mod hidden;
mod hostile;
mod ipv6;
mod link;
mod link6;
mod long_frames;
mod losses;
mod misbehaviour;
mod moving;
mod receiving;
mod reports;
mod resets;
mod retransmission;
mod soak;
mod timestamps;
mod transfers;
mod windows;
