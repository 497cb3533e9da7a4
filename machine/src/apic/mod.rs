//! Advanced programmable interrupt controllers: the one in each core ([`local`]), which takes interrupts, sends
//! them to other cores and has a timer; and those of the machine ([`io`]), which turn interrupt lines into
//! messages to cores.

pub mod io;
pub mod local;

use crate::authority::Authority;
use isola_abi::id::ApicId;

/// What a device writes, and where, to interrupt a core: a message-signalled interrupt.
///
/// The fields are public as the value gives no right: only the owner of a device's registers can put it into effect, and that
/// owner can have the device write anywhere by DMA as well (docs/isolation.md, "Devices").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterruptMessage {
    /// Where to.
    pub address: u64,
    /// What.
    pub data: u32,
}

/// The message that interrupts a core with a vector (Intel SDM 3, 10.11: physical destination, fixed delivery,
/// edge-triggered). `None` where the core's id does not fit: such cores take interrupts through remapping only.
pub fn message(_: Authority, apic: ApicId, vector: u8) -> Option<InterruptMessage> {
    let id = u8::try_from(apic.0).ok()?;
    Some(InterruptMessage { address: 0xfee0_0000 | u64::from(id) << 12, data: u32::from(vector) })
}
