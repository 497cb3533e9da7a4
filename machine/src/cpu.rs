//! The processor: its features, its control and model-specific registers, its cycle counter.

use core::arch::asm;
use core::arch::x86_64::{__cpuid, __cpuid_count, _rdtsc};
use isola_abi::descriptor::HaltMode;
use isola_abi::id::ApicId;

/// Model-specific registers (Intel SDM 4, AMD APM 2, appendix A).
pub(crate) mod msr {
    pub(crate) const APIC_BASE: u32 = 0x1b;
    pub(crate) const X2APIC: u32 = 0x800;
    pub(crate) const EFER: u32 = 0xc000_0080;
    pub(crate) const STAR: u32 = 0xc000_0081;
    pub(crate) const LSTAR: u32 = 0xc000_0082;
    pub(crate) const SYSCALL_MASK: u32 = 0xc000_0084;
    pub(crate) const GS_BASE: u32 = 0xc000_0101;
    pub(crate) const KERNEL_GS_BASE: u32 = 0xc000_0102;
}

/// Bits of CR4: no SGDT and the like in user mode, access to FS and GS bases, no execution of user pages, no access to
/// user pages.
const CR4_UMIP: u64 = 1 << 11;
const CR4_FSGSBASE: u64 = 1 << 16;
const CR4_SMEP: u64 = 1 << 20;
const CR4_SMAP: u64 = 1 << 21;

/// The processor's features, as far as Isola uses them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// The local APIC has model-specific registers.
    pub x2apic: bool,
    /// Pages of 1 GiB.
    pub gib_pages: bool,
    /// Instructions for the bases of FS and GS.
    pub fsgsbase: bool,
    /// The processor is virtual.
    pub hypervisor: bool,
    /// The instruction RDRAND.
    pub rdrand: bool,
    /// The instructions MONITOR and MWAIT.
    pub monitor: bool,
    /// Bits of a physical address.
    pub physical_bits: u8,
    smep: bool,
    smap: bool,
    umip: bool,
}

impl Features {
    /// Reads the features of this core; all cores of a machine have the same.
    pub fn read() -> Self {
        let one = cpuid(1, 0);
        let seven = cpuid(7, 0);
        let extended = cpuid(0x8000_0001, 0);
        let sizes = cpuid(0x8000_0008, 0);
        let bit = |word: u32, bit: u32| word & 1 << bit != 0;
        Self {
            x2apic: bit(one.ecx, 21),
            gib_pages: bit(extended.edx, 26),
            fsgsbase: bit(seven.ebx, 0),
            hypervisor: bit(one.ecx, 31),
            rdrand: bit(one.ecx, 30),
            monitor: bit(one.ecx, 3),
            physical_bits: if sizes.eax == 0 { 36 } else { sizes.eax as u8 },
            smep: bit(seven.ebx, 7),
            smap: bit(seven.ebx, 20),
            umip: bit(seven.ecx, 2),
        }
    }
}

impl Features {
    /// Returns whether the processor rejects execution of and access to user pages in ring 0.
    pub(crate) fn has_smep_and_smap(&self) -> bool {
        self.smep && self.smap
    }

    /// Returns the instruction by which cores halt. Without a request, that is MWAIT on a physical processor, and HLT
    /// under a hypervisor, which may keep a processor busy in MWAIT. A processor without MWAIT uses HLT in any case.
    pub fn halt_mode(&self, requested: Option<HaltMode>) -> HaltMode {
        let by_default = if self.hypervisor { HaltMode::Hlt } else { HaltMode::Mwait };
        match requested.unwrap_or(by_default) {
            HaltMode::Mwait if self.monitor => HaltMode::Mwait,
            _ => HaltMode::Hlt,
        }
    }
}

/// The result of the instruction CPUID.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cpuid {
    pub(crate) eax: u32,
    pub(crate) ebx: u32,
    pub(crate) ecx: u32,
    pub(crate) edx: u32,
}

/// Returns whether QEMU's emulator executes this code (leaf 0x4000_0000, the hypervisor's signature).
pub(crate) fn is_emulated() -> bool {
    let signature = __cpuid(0x4000_0000);
    Features::read().hypervisor && [signature.ebx, signature.ecx, signature.edx] == EMULATOR
}

/// The signature "TCGTCGTCGTCG".
const EMULATOR: [u32; 3] =
    [u32::from_le_bytes(*b"TCGT"), u32::from_le_bytes(*b"CGTC"), u32::from_le_bytes(*b"GTCG")];

/// Returns a leaf of CPUID; zeros if the processor does not have it.
pub(crate) fn cpuid(leaf: u32, subleaf: u32) -> Cpuid {
    let range = leaf & 0xffff_0000;
    let last = __cpuid(range).eax;
    if !(range..=range + 0xffff).contains(&last) || leaf > last {
        return Cpuid::default();
    }
    let answer = __cpuid_count(leaf, subleaf);
    Cpuid { eax: answer.eax, ebx: answer.ebx, ecx: answer.ecx, edx: answer.edx }
}

/// Returns the APIC id of this core after reset. `smp/start.s` determines it in the same way.
pub(crate) fn initial_apic_id() -> ApicId {
    let topology = cpuid(0xb, 0);
    ApicId(if topology.ebx == 0 { cpuid(1, 0).ebx >> 24 } else { topology.edx })
}

/// Enables the processor's protections of this core against faults of its own code. Leaves bits that the processor does
/// not have unchanged: some emulators hang otherwise.
pub(crate) fn protect() {
    let features = Features::read();
    let wanted = [
        (features.umip, CR4_UMIP),
        (features.fsgsbase, CR4_FSGSBASE),
        (features.smep, CR4_SMEP),
        (features.smap, CR4_SMAP),
    ];
    let bits = wanted.iter().filter(|(has, _)| *has).fold(0, |bits, (_, bit)| bits | bit);
    // SAFETY: the bits exist, and only remove rights that Isola's code does not use, or enable instructions.
    unsafe {
        asm!("mov {old}, cr4", "or {old}, {bits}", "mov cr4, {old}", old = out(reg) _, bits = in(reg) bits)
    };
}

/// Reads the cycle counter. It is the same on all cores, as far as the processor guarantees that.
#[inline]
pub fn cycles() -> u64 {
    // SAFETY: every x86-64 processor has it, and ring 0 may always read it.
    unsafe { _rdtsc() }
}

/// Returns 64 bits of the processor's random number generator; `None` if there is none, or it fails.
pub fn random() -> Option<u64> {
    if !Features::read().rdrand {
        return None;
    }
    (0..10).find_map(|_| {
        let (value, ok): (u64, u8);
        // SAFETY: the instruction exists, and changes only its operands.
        unsafe { asm!("rdrand {}", "setc {}", out(reg) value, out(reg_byte) ok, options(nomem, nostack)) };
        (ok == 1).then_some(value)
    })
}

/// Sets the base of this core's GS segment, which contains the core's own data in a cell.
///
/// # Safety
/// All code that reads the segment on this core must expect its data at `base` from now on.
pub unsafe fn set_gs_base(base: u64) {
    // SAFETY: the register exists; the caller guarantees that all code expects the value.
    unsafe { write_msr(msr::GS_BASE, base) }
}

/// Returns the base of this core's GS segment.
pub(crate) fn gs_base() -> u64 {
    // SAFETY: every processor has the register.
    unsafe { read_msr(msr::GS_BASE) }
}

/// Sets the value that [`fault_address`] returns.
pub(crate) fn set_fault_address(address: u64) {
    // SAFETY: only page faults and this function write the register, and no other code depends on it.
    unsafe { asm!("mov cr2, {}", in(reg) address, options(nomem, nostack, preserves_flags)) };
}

/// Returns the address whose access caused the last page fault of this core.
pub fn fault_address() -> u64 {
    let address;
    // SAFETY: reading the register changes nothing.
    unsafe { asm!("mov {}, cr2", out(reg) address, options(nomem, nostack, preserves_flags)) };
    address
}

/// Reads a model-specific register.
///
/// # Safety
/// The register must exist.
pub(crate) unsafe fn read_msr(register: u32) -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: the caller guarantees that the register exists; reading those above has no effect.
    unsafe { asm!("rdmsr", in("ecx") register, out("eax") low, out("edx") high, options(nostack)) };
    u64::from(high) << 32 | u64::from(low)
}

/// Writes a model-specific register.
///
/// # Safety
/// The register must exist, and the value must not break assumptions of other code.
pub(crate) unsafe fn write_msr(register: u32, value: u64) {
    // SAFETY: the caller guarantees both.
    unsafe {
        asm!("wrmsr", in("ecx") register, in("eax") value as u32, in("edx") (value >> 32) as u32, options(nostack));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use HaltMode::{Hlt, Mwait};

    #[test]
    fn a_virtual_processor_halts_by_hlt_unless_mwait_is_requested() {
        let mode = |monitor, hypervisor, requested| {
            Features { monitor, hypervisor, ..Features::read() }.halt_mode(requested)
        };
        assert_eq!((mode(true, false, None), mode(true, true, None)), (Mwait, Hlt));
        assert_eq!((mode(true, false, Some(Hlt)), mode(true, true, Some(Mwait))), (Hlt, Mwait));
        assert_eq!((mode(false, false, None), mode(false, false, Some(Mwait))), (Hlt, Hlt));
    }
}
