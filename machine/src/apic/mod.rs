//! Advanced programmable interrupt controllers: the [`local`] APIC of each core, which receives interrupts, sends them
//! to other cores and has a timer; and the machine's I/O APICs ([`io`]), which translate interrupt lines into messages
//! to cores.

pub mod io;
pub mod local;

use crate::authority::Authority;
use isola_abi::descriptor::InterruptMode;
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

/// The destination of 8 bits that addresses all cores.
const BROADCAST: u8 = 0xff;

/// Returns the destination of 8 bits that addresses a core; `None` if its APIC id exceeds 254.
fn destination(apic: ApicId) -> Option<u8> {
    u8::try_from(apic.0).ok().filter(|id| *id != BROADCAST)
}

/// Returns whether other cores can interrupt a core with this APIC id.
pub(crate) fn is_addressable(mode: InterruptMode, apic: ApicId) -> bool {
    match mode {
        InterruptMode::XApic => destination(apic).is_some(),
        InterruptMode::X2Apic => apic.0 != u32::MAX,
    }
}

/// Returns the message that interrupts a core with a vector (Intel SDM 3, 10.11: physical destination, fixed delivery,
/// edge-triggered); `None` if the core's APIC id exceeds 254: such cores take messages only through interrupt
/// remapping.
pub fn message(_: Authority, apic: ApicId, vector: u8) -> Option<InterruptMessage> {
    let id = destination(apic)?;
    Some(InterruptMessage { address: 0xfee0_0000 | u64::from(id) << 12, data: u32::from(vector) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_core_has_the_address_of_a_broadcast() {
        for (id, by_device, by_core) in
            [(0, true, true), (254, true, true), (255, false, false), (256, false, false)]
        {
            let apic = ApicId(id);
            assert_eq!(message(Authority::OWN, apic, 40).is_some(), by_device, "{id}");
            assert_eq!(is_addressable(InterruptMode::XApic, apic), by_core, "{id}");
            assert!(is_addressable(InterruptMode::X2Apic, apic), "{id}");
        }
        assert!(!is_addressable(InterruptMode::X2Apic, ApicId(u32::MAX)));
        let message = message(Authority::OWN, ApicId(254), 40);
        assert_eq!(message, Some(InterruptMessage { address: 0xfeef_e000, data: 40 }));
    }
}
