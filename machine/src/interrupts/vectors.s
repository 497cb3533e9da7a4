# The entry points of the 256 interrupt vectors, 16 bytes apart, and their common code.
#
# Vectors from 32 on are interrupts. The processor takes them only in `window` and `halt` (mod.rs), which declare that
# all caller-saved registers are lost there, so nothing is saved here. Vectors below 16 are exceptions. Vectors from 16
# to 31 can be either: a local APIC delivers any vector from 16 on (Intel SDM 3, "Valid Interrupt Vectors"; AMD APM 2,
# chapter 16), and an interrupt pushes no error code. At an exception all registers are saved for the report, in the
# order of `ExceptionFrame` (frame.rs). The interrupted code continues only after a handled page fault or non-maskable
# interrupt; all registers are restored then, including those of SSE, which Rust's code uses everywhere. (No code uses
# x87, MMX or AVX, and no code changes the rounding mode of SSE.)
#
# Interrupts and exceptions in user mode (the saved CS has privilege level 3) are handled in user/entry.s: they return
# from the call that entered user mode. Only non-maskable interrupts and double faults are handled as in ring 0.
#
# A suspended context has the same form; another core can resume it (cell/suspended.rs).

.altmacro
.macro vector number, has_code
    .balign 16
    .if \number < 32
        .if \has_code == 0
            push $0
        .endif
        push $\number
        .if \number == 14
            jmp isola_page_fault_entry
        .elseif \number == 2
            jmp isola_non_maskable_entry
        .elseif \number >= 16
            jmp isola_ambiguous_vector_entry
        .elseif \number == 8
            jmp isola_double_fault_entry
        .else
            jmp isola_exception_entry
        .endif
    .else
        push $\number
        jmp isola_interrupt_entry
    .endif
.endm

.section .text.isola_vectors, "ax"
.balign 16
.globl isola_vectors
isola_vectors:
.set number, 0
.rept 256
    # These exceptions push an error code: double fault, invalid TSS, segment, stack, protection, page, alignment,
    # control protection, VMM communication, security (Intel SDM 3, table 6-1; AMD APM 2, table 8-1).
    .set has_code, 0
    .if number < 32
        .set has_code, (0x60227d00 >> number) & 1
    .endif
    vector %number, %has_code
    .set number, number + 1
.endr

.balign 16
isola_interrupt_entry:
    testb $3, 16(%rsp)
    jnz isola_user_interrupt
    mov (%rsp), %rdi
    call isola_interrupt
    add $8, %rsp
    iretq

.macro push_all
    push %rax
    push %rbx
    push %rcx
    push %rdx
    push %rsi
    push %rdi
    push %rbp
    push %r8
    push %r9
    push %r10
    push %r11
    push %r12
    push %r13
    push %r14
    push %r15
    cld
.endm

.macro for_each_sse instruction
    .set number, 0
    .rept 16
        \instruction %number
        .set number, number + 1
    .endr
.endm
.macro save_sse number
    movaps %xmm\number, 16 * \number(%rsp)
.endm
.macro restore_sse number
    movaps 16 * \number(%rsp), %xmm\number
.endm

# The processor aligned the stack at 16 bytes and then pushed six words with the stub; 16 words more keep it aligned.
.macro recoverable handler
    push_all
    mov %rsp, %rdi
    sub $256, %rsp
    for_each_sse save_sse
    call \handler
    restore_all
.endm

.macro restore_all
    for_each_sse restore_sse
    add $256, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %r11
    pop %r10
    pop %r9
    pop %r8
    pop %rbp
    pop %rdi
    pop %rsi
    pop %rdx
    pop %rcx
    pop %rbx
    pop %rax
    add $16, %rsp
    iretq
.endm

.balign 16
isola_page_fault_entry:
    testb $3, 24(%rsp)
    jnz isola_user_trap
    recoverable isola_page_fault

.balign 16
isola_non_maskable_entry:
    recoverable isola_non_maskable

.balign 16
isola_exception_entry:
    testb $3, 24(%rsp)
    jnz isola_user_trap
isola_double_fault_entry:
    push_all
    mov %rsp, %rdi
    and $-16, %rsp
    call isola_exception
    ud2

# An exception, or an interrupt with the vector of one. For an interrupt isola_ambiguous_vector returns, in rax, the
# number of bytes between the fifteen registers and the frame that IRETQ takes; caller-saved registers are lost then, as
# at any interrupt. Only entries from user mode use the stack of traps, whose top is aligned at 16 bytes: it shows whether
# the processor has pushed an error code, or the stub a 0, below its five words. The address of all stacks, their length
# per core slot, and the offset of the page of traps are asserted in user/core_block.rs.
.set STACKS_BELOW, 0x400000000000
.set STACK_SLOT, 0x200000
.set STACK_SLOTS, 64
.set TRAP_PAGE, 0xc0000
.balign 16
isola_ambiguous_vector_entry:
    push %rax
    movabs $STACKS_BELOW, %rax
    add %rsp, %rax
    cmp $(STACK_SLOTS * STACK_SLOT), %rax
    jae 1f
    and $(STACK_SLOT - 1), %eax
    sub $TRAP_PAGE, %eax
    cmp $4096, %eax
    jae 1f
    pop %rax
    test $8, %spl
    jz isola_user_interrupt
    jmp isola_user_trap
1:  pop %rax
    push_all
    mov %rsp, %rdi
    mov %rsp, %rbx
    and $-16, %rsp
    call isola_ambiguous_vector
    lea 120(%rbx, %rax), %rsp
    mov 0x68(%rbx), %rbx
    iretq

# Contexts are not suspended while they execute the code up to isola_contexts_end, see `may_switch` (cell/suspended.rs).
#
# isola_switch_context saves the caller's context at rdi and resumes another; it returns when the caller's context is
# resumed. Caller-saved registers are not saved. The other arguments are those of isola_resume.
.balign 16
.globl isola_switch_context, isola_resume, isola_contexts_end
isola_switch_context:
    lea 256(%rdi), %rax
    mov %r15, 0x00(%rax)
    mov %r14, 0x08(%rax)
    mov %r13, 0x10(%rax)
    mov %r12, 0x18(%rax)
    mov %rbp, 0x40(%rax)
    mov %rbx, 0x68(%rax)
    mov (%rsp), %r9
    mov %r9, 0x88(%rax)
    mov %cs, %r9d
    mov %r9, 0x90(%rax)
    pushfq
    popq 0x98(%rax)
    lea 8(%rsp), %r9
    mov %r9, 0xa0(%rax)
    mov %ss, %r9d
    mov %r9, 0xa8(%rax)

# isola_resume resumes the context at rsi. Before that, but after the last use of the caller's stack, it stores 0 at rdx
# (a byte), then r8d at rcx.
isola_resume:
    mov %rsi, %rsp
    movb $0, (%rdx)
    mov %r8d, (%rcx)
    restore_all
isola_contexts_end:

.noaltmacro
.text
