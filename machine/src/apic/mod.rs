//! Advanced programmable interrupt controllers: the [`local`] APIC of each core, which receives interrupts, sends them
//! to other cores and has a timer; and the machine's I/O APICs ([`io`]), which translate interrupt lines into messages
//! to cores.

pub mod io;
pub mod local;

use crate::authority::Authority;
use isola_abi::id::ApicId;

/// A message-signalled interrupt: the address and data of the write by which a device interrupts a core.
///
/// The fields are public as the value grants no right: only the owner of a device's registers can use it, and that
/// owner can also make the device write anywhere by DMA (docs/isolation.md, "Devices").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterruptMessage {
    /// Address of the write.
    pub address: u64,
    /// Data of the write.
    pub data: u32,
}

/// Returns the message that interrupts a core with a vector (Intel SDM 3, 10.11: physical destination, fixed delivery,
/// edge-triggered); `None` if the core's APIC id exceeds 255: such cores take messages only through interrupt
/// remapping.
pub fn message(_: Authority, apic: ApicId, vector: u8) -> Option<InterruptMessage> {
    let id = u8::try_from(apic.0).ok()?;
    Some(InterruptMessage { address: 0xfee0_0000 | u64::from(id) << 12, data: u32::from(vector) })
}
