//! No function of an image stores data below its stack pointer, and virtqueues use the machine layer's full barrier.
//!
//! The System V ABI lets a leaf function use 128 bytes below `rsp`, the red zone. An interrupt on the same stack
//! overwrites them. The tree's code is compiled without it (`-Cno-redzone`), but the compiler's own libraries are not;
//! the check therefore inspects the machine code of every image.
//!
//! It reads each function once from its start, and tracks the lowest position of `rsp` ([`Frame`]). An access below it,
//! through `rsp` or the frame pointer, uses the red zone. The check reads only symbols of type function: hand-written
//! assembly without that type contains data and 16-bit code, and remains its author's responsibility.
//!
//! An image with a virtqueue must contain MFENCE, by which the check recognises `isola_machine::dma::full_barrier`. A
//! sequentially consistent fence in its place becomes a locked operation, which is no barrier on QEMU's emulator of one
//! processor. The check does not see the read of the cycle counter behind MFENCE.
//!
//! Privileged instructions outside of the machine layer are noted and do not fail the check.

mod frame;

use std::collections::BTreeSet;

use iced_x86::{Code, Decoder, DecoderOptions, Instruction};

use self::frame::Frame;
use super::image::{Function, functions};
use super::{Check, Findings};
use crate::error::Error;
use crate::images;
use crate::workspace::{Image, Workspace};

pub const CHECK: Check = Check {
    name: "red-zone",
    about: "no image stores data below its stack pointer, where an interrupt would overwrite it",
    remedy: "build images with the flags of .cargo/config.toml (is RUSTFLAGS set?); avoid or replace functions of the \
             compiler's own libraries that use the red zone",
    run,
};

/// The crate with all hardware access, and so with the privileged instructions.
const PRIVILEGED_HOME: &str = "isola_machine";
/// The module of the driver's rings, whose barriers must be MFENCE.
const VIRTQUEUE: &str = "isola_drivers::virtqueue";
/// The most functions that a note names.
const NAMES_AT_MOST: usize = 5;

fn run(workspace: &Workspace) -> Result<Findings, Error> {
    let images = images::build_for_tests(workspace)?;
    if images.is_empty() {
        return Ok(Findings::not_checked("the tree has no image yet"));
    }
    let mut findings = Findings::default();
    for image in &images {
        let found = judge(image)?;
        findings.failures.extend(found.failures);
        findings.notes.extend(found.notes);
    }
    Ok(findings)
}

fn judge(image: &Image) -> Result<Findings, Error> {
    let functions = functions(&image.path)?;
    let mut findings = Findings::default();
    let mut privileged = BTreeSet::new();
    let (mut has_queue, mut has_fence) = (false, false);
    for function in &functions {
        let summary = read_function(function);
        if let Some(address) = summary.below_stack {
            let name = &function.name;
            findings.failures.push(format!("{}: {name} uses the red zone at {address:#x}", image.name));
        }
        if summary.is_privileged && !is_privileged_home(&function.name) {
            privileged.insert(function.name.as_str());
        }
        has_queue |= function.name.contains(VIRTQUEUE);
        has_fence |= summary.is_fence;
    }
    if has_queue && !has_fence {
        findings.failures.push(format!("{}: no virtqueue orders its notifications by MFENCE", image.name));
    }
    if !privileged.is_empty() {
        let (image, count) = (&image.name, privileged.len());
        let names = privileged.into_iter().take(NAMES_AT_MOST).collect::<Vec<_>>().join(", ");
        findings.notes.push(format!(
            "{image}: {count} functions outside of machine, or with inlined code of it, are privileged: {names}"
        ));
    }
    Ok(findings)
}

/// Returns whether privileged instructions are expected in the function `name`. Functions that assembly or the compiler
/// refers to by name have no path.
fn is_privileged_home(name: &str) -> bool {
    name.contains(PRIVILEGED_HOME) || (name.starts_with("isola_") && !name.contains("::"))
}

/// The result of reading a function.
#[derive(Debug, Default, PartialEq, Eq)]
struct FunctionSummary {
    /// The address of the first access below the stack pointer.
    below_stack: Option<u64>,
    /// Whether it executes a privileged instruction.
    is_privileged: bool,
    /// Whether it executes MFENCE.
    is_fence: bool,
}

fn read_function(function: &Function) -> FunctionSummary {
    let mut summary = FunctionSummary::default();
    let mut frame = Frame::default();
    let mut decoder = Decoder::with_ip(64, &function.code, function.address, DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    while decoder.can_decode() {
        decoder.decode_out(&mut instruction);
        if summary.below_stack.is_none() && frame.is_below(&instruction) {
            summary.below_stack = Some(instruction.ip());
        }
        summary.is_privileged |= instruction.is_privileged();
        summary.is_fence |= instruction.code() == Code::Mfence;
        frame.step(&instruction);
    }
    summary
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(code: &[u8]) -> FunctionSummary {
        read_function(&Function { name: "f".into(), address: 0x1000, code: code.to_vec() })
    }

    /// Returns the offset of the first access below the stack pointer.
    fn below(code: &[u8]) -> Option<u64> {
        summary(code).below_stack.map(|address| address - 0x1000)
    }

    #[test]
    fn a_store_below_the_stack_pointer_is_found() {
        // mov [rsp-8], rdi; ret
        assert_eq!(below(&[0x48, 0x89, 0x7c, 0x24, 0xf8, 0xc3]), Some(0));
        // nop; movaps xmm0, [rsp-0x18]; ret
        assert_eq!(below(&[0x90, 0x0f, 0x28, 0x44, 0x24, 0xe8, 0xc3]), Some(1));
    }

    #[test]
    fn a_store_below_the_stack_pointer_through_the_frame_pointer_is_found() {
        // push rbp; mov rbp, rsp; mov [rbp-8], rdi; pop rbp; ret
        assert_eq!(below(&[0x55, 0x48, 0x89, 0xe5, 0x48, 0x89, 0x7d, 0xf8, 0x5d, 0xc3]), Some(4));
    }

    #[test]
    fn a_store_within_an_allocated_frame_passes() {
        // push rbp; mov rbp, rsp; push rbx; sub rsp, 0x18; mov [rbp-0x20], rdi; mov [rsp], rdi
        let code = [
            0x55, 0x48, 0x89, 0xe5, 0x53, 0x48, 0x83, 0xec, 0x18, 0x48, 0x89, 0x7d, 0xe0, 0x48, 0x89, 0x3c,
            0x24, 0xc3,
        ];
        assert_eq!(below(&code), None);
        // The same with [rbp-0x28], eight bytes below the allocated frame.
        let mut past = code;
        past[12] = 0xd8;
        assert_eq!(below(&past), Some(9));
    }

    #[test]
    fn computed_addresses_and_unknown_frames_pass() {
        // lea rax, [rsp-8]; ret
        assert_eq!(below(&[0x48, 0x8d, 0x44, 0x24, 0xf8, 0xc3]), None);
        // push rbp; mov rbp, rsp; sub rsp, rax; mov [rbp-0x40], rdi
        assert_eq!(below(&[0x55, 0x48, 0x89, 0xe5, 0x48, 0x29, 0xc4, 0x48, 0x89, 0x7d, 0xc0]), None);
        // mov rax, [rsp+rcx*8-8]: an index that starts at one
        assert_eq!(below(&[0x48, 0x8b, 0x44, 0xcc, 0xf8]), None);
        // push rbp; mov rbp, rsp; and rsp, -32; sub rsp, 0x20; mov [rsp], rdi; mov [rbp-0x20], rdi
        let aligned = [
            0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xe4, 0xe0, 0x48, 0x83, 0xec, 0x20, 0x48, 0x89, 0x3c, 0x24,
            0x48, 0x89, 0x7d, 0xe0,
        ];
        assert_eq!(below(&aligned), None);
    }

    #[test]
    fn the_frame_pointer_as_an_ordinary_register_passes() {
        // push rbp; mov rbp, rdi; mov [rbp-8], rsi; pop rbp; ret
        assert_eq!(below(&[0x55, 0x48, 0x89, 0xfd, 0x48, 0x89, 0x75, 0xf8, 0x5d, 0xc3]), None);
    }

    #[test]
    fn privileged_instructions_are_expected_in_the_machine_layer() {
        assert!(is_privileged_home("<isola_machine::apic::Apic as Timer>::arm"));
        assert!(is_privileged_home("isola_entry"));
        assert!(!is_privileged_home("isola_kv::main"));
    }

    #[test]
    fn only_mfence_counts_as_a_full_barrier() {
        assert!(summary(&[0x0f, 0xae, 0xf0, 0xc3]).is_fence);
        // lock or dword ptr [rsp], 0
        assert!(!summary(&[0xf0, 0x83, 0x0c, 0x24, 0x00, 0xc3]).is_fence);
    }

    #[test]
    fn privileged_instructions_are_detected() {
        // mov cr3, rax
        assert!(summary(&[0x0f, 0x22, 0xd8]).is_privileged);
        // hlt
        assert!(summary(&[0xf4]).is_privileged);
        // rdtsc; pause
        assert!(!summary(&[0x0f, 0x31, 0xf3, 0x90]).is_privileged);
    }
}
