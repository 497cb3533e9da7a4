//! Rings between two cells that do not trust each other (RainForest 5.2: FICM).
//!
//! Two *halves* of memory make a pair of rings, one for each direction. Each cell owns one half and writes only that one;
//! the other cell maps it read-only. So a peer can change nothing but its own words, and [`Ring`] treats each of these as
//! hostile: it reads a word once, checks it, and uses the copy. A half consists of lines of 64 bytes:
//!
//! ```text
//! line 0   MARK                                      written once, before the peer can see the half
//! line 1   head      lines written to this half      the producer's index, stored (release) after the lines
//! line 2   tail      lines read from the peer's half the consumer's index, stored (release) after they were copied
//!          wake_at   the index of the peer's next line of which its producer notifies this side; or never
//! line 3   room_at   the value of the peer's tail from which its consumer notifies this side; or never
//! line 4.. the entries: a power of two of lines
//! ```
//!
//! An index counts lines since the ring began and is never reduced modulo the capacity; in 64 bits it does not overflow.
//! A *packet* is one or more lines, published together. Its first line has a header, `sequence << 32 | length`, and 56
//! bytes; each further one has 64. The sequence is the low half of the line's index: a line of an earlier round is not
//! taken for a new one. A message of at most [`MESSAGE_BYTES`] is one line, a *doorbell*.
//!
//! **Notification.** A side that is about to halt [arms](Ring::arm) itself and checks again; a side that publishes checks
//! whether the other is armed. Each stores its own word, executes a full fence, and loads the other's word, so at least
//! one of the two sees the other's store (Dekker). A producer notifies only when it writes the very line for which the
//! consumer is armed: any number of packets to a consumer that has not woken yet cause one interrupt.
//!
//! **A hostile peer.** It can stop, send any bytes as packets, and notify for no reason. It cannot make this
//! side read outside of the half, wait, allocate more than one packet, or take an index that contradicts an earlier one:
//! that is [`Broken`], and stays so. If the peer's half is unmapped after its death, any other readable memory may take
//! its place.
//!
//! Not here: the mapping of memory (the supervisor), and the futures over a ring (`isola-channels`).
#![no_std]
#![deny(unsafe_code)]

extern crate alloc;

#[cfg(not(loom))]
pub mod bytes;
mod half;
mod ring;
mod sync;

pub use half::{HEADER_LINES, Half, LINE_BYTES, LINE_WORDS, TooSmall};
#[cfg(not(loom))]
pub use ring::IncomingPacket;
pub use ring::{Armed, Broken, MESSAGE_BYTES, Message, MustNotify, Posted, Ring, SendError, fence_posts};
