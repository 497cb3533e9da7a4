//! Tracks how far a function has moved the stack pointer down.

use iced_x86::{Instruction, Mnemonic, OpAccess, OpKind, Register};

/// The state of a function's stack after some of its instructions, read in the order of their addresses. Compilers put
/// the prologue first, so this order suffices: the depth only grows.
#[derive(Debug, Default)]
pub struct Frame {
    /// The most bytes by which `rsp` has moved down; `Unknown` if it cannot be determined.
    depth: Depth,
    /// The depth at which `rbp` points, while it is a frame pointer.
    base: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
enum Depth {
    Known(u64),
    Unknown,
}

impl Default for Depth {
    fn default() -> Self {
        Self::Known(0)
    }
}

impl Frame {
    /// Returns whether `instruction` accesses memory below the stack pointer.
    pub fn is_below(&self, instruction: &Instruction) -> bool {
        let through = instruction.memory_base();
        if !touches_memory(instruction) || instruction.memory_index() != Register::None {
            return false;
        }
        let Some(distance) = distance_down(instruction) else {
            return false;
        };
        match through {
            Register::RSP => true,
            Register::RBP => match (self.depth, self.base) {
                (Depth::Known(depth), Some(base)) => distance > depth.saturating_sub(base),
                _ => false,
            },
            _ => false,
        }
    }

    /// Records the effect of `instruction` on `rsp` and `rbp`.
    pub fn step(&mut self, instruction: &Instruction) {
        let to = if instruction.op0_kind() == OpKind::Register {
            instruction.op0_register()
        } else {
            Register::None
        };
        match (instruction.mnemonic(), to) {
            (Mnemonic::Push, _) => self.deepen(8),
            (Mnemonic::Mov, Register::RBP) if is_from(instruction, Register::RSP) => {
                self.base = match self.depth {
                    Depth::Known(depth) => Some(depth),
                    Depth::Unknown => None,
                };
            }
            (Mnemonic::Sub, Register::RSP) => match immediate(instruction) {
                Some(bytes) if bytes >= 0 => self.deepen(bytes.unsigned_abs()),
                Some(_) => {}
                None => self.depth = Depth::Unknown,
            },
            // Compilers allocate 128 bytes by adding -128.
            (Mnemonic::Add, Register::RSP) => match immediate(instruction) {
                Some(bytes) if bytes < 0 => self.deepen(bytes.unsigned_abs()),
                Some(_) => {}
                None => self.depth = Depth::Unknown,
            },
            // Alignment moves `rsp` by less than the alignment.
            (Mnemonic::And, Register::RSP) => match immediate(instruction) {
                Some(mask) if mask < 0 => self.deepen(mask.unsigned_abs() - 1),
                _ => self.depth = Depth::Unknown,
            },
            // The epilogue releases the frame; code after it may belong to a path without epilogue.
            (Mnemonic::Lea | Mnemonic::Mov, Register::RSP) if is_epilogue(instruction) => {}
            (Mnemonic::Pop | Mnemonic::Ret | Mnemonic::Leave, _) => {}
            (_, Register::RSP) if writes_first(instruction) => self.depth = Depth::Unknown,
            (_, Register::RBP) if writes_first(instruction) => self.base = None,
            _ => {}
        }
    }

    fn deepen(&mut self, bytes: u64) {
        if let Depth::Known(depth) = self.depth {
            self.depth = Depth::Known(depth.saturating_add(bytes));
        }
    }
}

/// Returns whether `instruction` accesses its memory operand, rather than computing an address.
fn touches_memory(instruction: &Instruction) -> bool {
    let has_memory = (0..instruction.op_count()).any(|at| instruction.op_kind(at) == OpKind::Memory);
    has_memory && !matches!(instruction.mnemonic(), Mnemonic::Lea | Mnemonic::Nop)
}

/// Returns the distance of an operand below its base register; `None` if it is not below.
fn distance_down(instruction: &Instruction) -> Option<u64> {
    let displacement = instruction.memory_displacement64().cast_signed();
    (displacement < 0).then(|| displacement.unsigned_abs())
}

fn is_from(instruction: &Instruction, register: Register) -> bool {
    instruction.op1_kind() == OpKind::Register && instruction.op1_register() == register
}

/// Returns whether `instruction` computes `rsp` from the frame pointer.
fn is_epilogue(instruction: &Instruction) -> bool {
    is_from(instruction, Register::RBP)
        || (instruction.op1_kind() == OpKind::Memory && instruction.memory_base() == Register::RBP)
}

fn immediate(instruction: &Instruction) -> Option<i64> {
    let is_immediate = matches!(
        instruction.op1_kind(),
        OpKind::Immediate8to64 | OpKind::Immediate32to64 | OpKind::Immediate64 | OpKind::Immediate32
    );
    is_immediate.then(|| instruction.immediate(1).cast_signed())
}

fn writes_first(instruction: &Instruction) -> bool {
    let access = iced_x86::InstructionInfoFactory::new().info(instruction).op0_access();
    matches!(access, OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite)
}
