//! The processor state that `UserContext` lacks: x87, the upper halves of vector registers, and AVX-512, in the standard
//! format of XSAVE (Intel SDM 1, 13.4).
//!
//! The image's own code uses none of these registers. A thread's state is saved after each trap, unless the processor
//! reports that it is the initial one (XGETBV with ECX = 1), as it is in most programs between two uses; so a thread can
//! move to another core at any time. It is loaded only if another thread has run on the core since.

use crate::cpu::cpuid;
use alloc::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use core::arch::asm;
use core::arch::x86_64::{_xgetbv, _xrstor64, _xsave64, _xsaveopt64, _xsetbv};
use core::ptr::NonNull;
use isola_abi::user_context::{INITIAL_MXCSR, UserContext};
use spin::Once;

/// Components (Intel SDM 1, 13.1): x87; SSE; the upper halves of AVX; the three of AVX-512.
const X87: u64 = 1 << 0;
const SSE: u64 = 1 << 1;
const AVX: u64 = 1 << 2;
const AVX_512: u64 = 7 << 5;

/// Offsets in the area.
const CONTROL_WORD: usize = 0;
const MXCSR: usize = 24;
const MXCSR_MASK: usize = 28;
const XMM: usize = 160;
const LEGACY_BYTES: usize = 416;
const HEADER: usize = 512;
const HEADER_END: usize = 576;
/// The offset of the upper halves of AVX, and their length.
const AVX_BYTES: core::ops::Range<usize> = 576..832;

/// The initial control word of x87.
const INITIAL_CONTROL_WORD: u16 = 0x37f;

/// The instructions and the components of the processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Support {
    /// The components that programs can use: the value of XCR0.
    components: u64,
    /// The length of the area, in bytes.
    len: usize,
    has_xsaveopt: bool,
    has_xgetbv1: bool,
}

impl Support {
    /// Returns the features of the processor. Needs no prepared core. All cores have the same, and they are read once: in a
    /// virtual machine, each read leaves the machine.
    pub(super) fn get() -> Self {
        static SUPPORT: Once<Support> = Once::new();
        *SUPPORT.call_once(Self::read)
    }

    fn read() -> Self {
        let all = cpuid(0xd, 0);
        let supported = u64::from(all.edx) << 32 | u64::from(all.eax);
        let mut components = (X87 | SSE) | supported & AVX;
        if components & AVX != 0 && supported & AVX_512 == AVX_512 {
            components |= AVX_512;
        }
        let end = |number: u32| {
            let part = cpuid(0xd, number);
            (part.ebx + part.eax) as usize
        };
        let used = (2..u64::BITS).filter(|number| components >> number & 1 != 0);
        let len = used.map(end).max().unwrap_or(0).max(HEADER_END);
        let features = cpuid(0xd, 1).eax;
        Self { components, len, has_xsaveopt: features & 1 != 0, has_xgetbv1: features & 4 != 0 }
    }

    /// Lets programs on this core use the components.
    ///
    /// # Safety
    /// The processor must have XSAVE, and the image's code must not depend on the absence of AVX.
    pub(super) unsafe fn enable(&self) {
        const CR4_OSXSAVE: u64 = 1 << 18;
        // SAFETY: the caller guarantees the feature; XCR0 gets components that the processor has.
        unsafe {
            asm!("mov {old}, cr4", "or {old}, {bits}", "mov cr4, {old}", old = out(reg) _, bits = in(reg) CR4_OSXSAVE);
            xsetbv(self.components);
        }
    }

    /// Returns the components that are saved and loaded here: SSE is in the context.
    fn other_components(&self) -> u64 {
        self.components & !SSE
    }
}

#[target_feature(enable = "xsave")]
unsafe fn xsetbv(value: u64) {
    // SAFETY: the caller guarantees the feature and the value.
    unsafe { _xsetbv(0, value) }
}

#[target_feature(enable = "xsave")]
unsafe fn components_in_use() -> u64 {
    // SAFETY: the caller guarantees the feature.
    unsafe { _xgetbv(1) }
}

#[target_feature(enable = "xsave")]
unsafe fn xsave(area: *mut u8, components: u64) {
    // SAFETY: the caller guarantees the feature and the area.
    unsafe { _xsave64(area, components) }
}

#[target_feature(enable = "xsave,xsaveopt")]
unsafe fn xsaveopt(area: *mut u8, components: u64) {
    // SAFETY: the caller guarantees the feature and the area.
    unsafe { _xsaveopt64(area, components) }
}

#[target_feature(enable = "xsave")]
unsafe fn xrstor(area: *const u8, components: u64) {
    // SAFETY: the caller guarantees the feature and the area.
    unsafe { _xrstor64(area, components) }
}

/// The bytes are no state in the standard format, are too few, or have components that programs cannot use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidArea;

/// A thread's state.
#[derive(Debug)]
pub(super) struct ExtendedState {
    area: NonNull<u8>,
    support: Support,
}

// SAFETY: the value owns its memory.
unsafe impl Send for ExtendedState {}

impl ExtendedState {
    /// Creates the initial state.
    pub(super) fn new(support: Support) -> Self {
        let layout = Self::layout(&support);
        // SAFETY: the length is not zero.
        let area = NonNull::new(unsafe { alloc_zeroed(layout) });
        let mut state = Self { area: area.unwrap_or_else(|| handle_alloc_error(layout)), support };
        state.put(MXCSR, &INITIAL_MXCSR.to_le_bytes());
        state
    }

    fn layout(support: &Support) -> Layout {
        Layout::from_size_align(support.len, 64).unwrap_or(Layout::new::<[u64; 8]>())
    }

    /// Creates a copy.
    pub(super) fn duplicate(&self) -> Self {
        let mut copy = Self::new(self.support);
        copy.bytes_mut().copy_from_slice(self.bytes());
        copy
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: the value owns so many initialised bytes.
        unsafe { core::slice::from_raw_parts(self.area.as_ptr(), self.support.len) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { core::slice::from_raw_parts_mut(self.area.as_ptr(), self.support.len) }
    }

    fn put(&mut self, offset: usize, bytes: &[u8]) {
        self.bytes_mut()[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    fn present(&self) -> u64 {
        header_word(self.bytes(), 0)
    }

    /// Saves the registers of this core.
    ///
    /// # Safety
    /// The core must be prepared, and have run the thread of this state last.
    #[inline]
    pub(super) unsafe fn save(&mut self) {
        let components = self.support.other_components();
        // SAFETY: the caller guarantees a prepared core; the area is as long as the processor says, and aligned.
        unsafe {
            if self.support.has_xgetbv1 && components_in_use() & components == 0 {
                self.area.add(HEADER).cast::<u64>().write(0);
            } else if self.support.has_xsaveopt {
                xsaveopt(self.area.as_ptr(), components);
            } else {
                xsave(self.area.as_ptr(), components);
            }
        }
    }

    /// Loads the registers of this core, except those of SSE. MXCSR becomes any value.
    ///
    /// # Safety
    /// The core must be prepared.
    pub(super) unsafe fn load(&mut self) {
        // The instruction loads MXCSR too, and rejects reserved bits.
        self.put(MXCSR, &INITIAL_MXCSR.to_le_bytes());
        // SAFETY: the caller guarantees a prepared core; `set` and `save` leave a valid area.
        unsafe { xrstor(self.area.as_ptr(), self.support.other_components()) };
    }

    /// Returns the state, with the registers of SSE from `context`.
    pub(super) fn bytes_with(&mut self, context: &UserContext, mxcsr_mask: u32) -> &[u8] {
        let present = self.present();
        if present & X87 == 0 {
            self.bytes_mut()[..XMM].fill(0);
            self.put(CONTROL_WORD, &INITIAL_CONTROL_WORD.to_le_bytes());
        }
        if present & AVX == 0 && self.support.len >= AVX_BYTES.end {
            self.bytes_mut()[AVX_BYTES].fill(0);
        }
        self.put(MXCSR, &context.mxcsr.to_le_bytes());
        self.put(MXCSR_MASK, &mxcsr_mask.to_le_bytes());
        for (number, register) in context.xmm.iter().enumerate() {
            self.put(XMM + 16 * number, register);
        }
        let present = present | SSE | X87;
        self.put(HEADER, &present.to_le_bytes());
        self.bytes()
    }

    /// Sets the state, and the registers of SSE in `context`.
    pub(super) fn set(
        &mut self,
        bytes: &[u8],
        context: &mut UserContext,
        mxcsr_mask: u32,
    ) -> Result<(), InvalidArea> {
        check(bytes, &self.support)?;
        let len = self.support.len;
        self.bytes_mut().copy_from_slice(&bytes[..len]);
        if self.present() & SSE != 0 {
            for (number, register) in context.xmm.iter_mut().enumerate() {
                register.copy_from_slice(&bytes[XMM + 16 * number..][..16]);
            }
            let [a, b, c, d] = [0, 1, 2, 3].map(|index| bytes[MXCSR + index]);
            context.mxcsr = u32::from_le_bytes([a, b, c, d]) & mxcsr_mask;
        } else {
            context.xmm = [[0; 16]; 16];
            context.mxcsr = INITIAL_MXCSR;
        }
        Ok(())
    }
}

impl Drop for ExtendedState {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and without other users.
        unsafe { dealloc(self.area.as_ptr(), Self::layout(&self.support)) };
    }
}

/// Checks that bytes are a state that the instruction XRSTOR accepts.
fn check(bytes: &[u8], support: &Support) -> Result<(), InvalidArea> {
    if bytes.len() < support.len {
        return Err(InvalidArea);
    }
    let is_known = header_word(bytes, 0) & !support.components == 0;
    let is_standard = (1..8).all(|word| header_word(bytes, word) == 0);
    if is_known && is_standard { Ok(()) } else { Err(InvalidArea) }
}

fn header_word(bytes: &[u8], word: usize) -> u64 {
    let at = HEADER + 8 * word;
    bytes.get(at..at + 8).and_then(|word| word.try_into().ok()).map_or(0, u64::from_le_bytes)
}

/// Returns the bits of MXCSR that the processor has.
pub(super) fn mxcsr_mask() -> u32 {
    #[repr(C, align(16))]
    struct Area([u8; 512]);
    let mut area = Area([0; 512]);
    // SAFETY: every x86-64 processor has the instruction, which stores 512 bytes.
    unsafe { core::arch::x86_64::_fxsave64(area.0.as_mut_ptr()) };
    let [a, b, c, d] = [0, 1, 2, 3].map(|index| area.0[MXCSR_MASK + index]);
    match u32::from_le_bytes([a, b, c, d]) {
        0 => 0xffbf,
        mask => mask,
    }
}

const _: () = assert!(LEGACY_BYTES == XMM + 256 && HEADER_END == HEADER + 64);

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn support() -> Support {
        Support { components: X87 | SSE | AVX, len: 832, has_xsaveopt: false, has_xgetbv1: false }
    }

    #[test]
    fn a_state_contains_the_registers_of_the_context() {
        let mut context = UserContext { mxcsr: 0x1fa0, ..UserContext::default() };
        context.xmm[15] = [7; 16];
        let mut state = ExtendedState::new(support());
        let bytes = state.bytes_with(&context, 0xffff).to_vec();
        assert_eq!(bytes[..2], INITIAL_CONTROL_WORD.to_le_bytes());
        assert_eq!(bytes[XMM + 240..XMM + 256], [7; 16]);
        let (mut other, mut copy) = (UserContext::default(), ExtendedState::new(support()));
        assert_eq!(copy.set(&bytes, &mut other, 0xffff), Ok(()));
        assert_eq!(other, context);
        assert_eq!(copy.duplicate().bytes()[AVX_BYTES], bytes[AVX_BYTES]);
    }

    #[test]
    fn reserved_bits_and_short_states_are_rejected() {
        let (mut context, mut state) = (UserContext::default(), ExtendedState::new(support()));
        let valid = state.bytes_with(&context, 0xffff).to_vec();
        let mut set = |bytes: &[u8]| state.set(bytes, &mut context, 0xffff);
        assert_eq!(set(&valid[..831]), Err(InvalidArea));
        assert_eq!(set(&[]), Err(InvalidArea));
        for offset in [HEADER, HEADER + 1, HEADER + 8, HEADER + 15, HEADER + 16, HEADER_END - 1] {
            let mut bytes = valid.clone();
            bytes[offset] |= 0x80;
            assert_eq!(set(&bytes), Err(InvalidArea), "{offset}");
        }
        assert_eq!(set(&valid), Ok(()));
    }

    #[test]
    fn a_state_without_sse_is_the_initial_one() {
        let mut context = UserContext { mxcsr: 0, xmm: [[1; 16]; 16], ..UserContext::default() };
        let mut state = ExtendedState::new(support());
        assert_eq!(state.set(&vec![0; 832], &mut context, 0xffff), Ok(()));
        assert_eq!(context, UserContext::default());
        let mut bytes = vec![0; 832];
        bytes[HEADER] = SSE as u8;
        bytes[MXCSR..MXCSR + 4].fill(0xff);
        assert_eq!(state.set(&bytes, &mut context, 0xffbf), Ok(()));
        assert_eq!(context.mxcsr, 0xffbf, "reserved bits are removed");
    }
}
