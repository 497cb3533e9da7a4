# The entry points of the 256 interrupt vectors, 16 bytes apart, and what they lead to.
#
# Vectors from 32 on are interrupts. They come only in `window` and `halt` (mod.rs), which declare that all
# registers a call may change are lost there: so nothing is saved here. Those below 16 are exceptions. Those from 16 to 31
# can be either: a local APIC delivers any vector from 16 on (Intel SDM 3, "Valid Interrupt Vectors"; AMD APM 2, chapter
# 16), and an interrupt pushes no error code. At exceptions all registers are kept for the report, in the order of `ExceptionFrame`
# (frame.rs). Nothing goes on after them, but after a page fault or a non-maskable interrupt that was handled: then all
# registers are as they were, those of SSE included, which Rust's code uses everywhere. (x87, MMX and AVX are used by
# nobody; the rounding of SSE is changed by nobody.)
#
# What a core is in the middle of can be kept in the same form, and be gone on with by another (cell/aside.rs).

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
            jmp isola_either_entry
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
    # Double fault, invalid TSS, segment, stack, protection, page, alignment, control protection,
    # VMM communication, security (Intel SDM 3, table 6-1; AMD APM 2, table 8-1): these push an error code.
    .set has_code, 0
    .if number < 32
        .set has_code, (0x60227d00 >> number) & 1
    .endif
    vector %number, %has_code
    .set number, number + 1
.endr

.balign 16
isola_interrupt_entry:
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

# The processor has aligned the stack at 16 bytes before it pushed six words; with 16 more it is aligned again.
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
    recoverable isola_page_fault

.balign 16
isola_non_maskable_entry:
    recoverable isola_non_maskable

.balign 16
isola_exception_entry:
    push_all
    mov %rsp, %rdi
    and $-16, %rsp
    call isola_exception
    ud2

# An exception, or an interrupt with the vector of one. At the latter isola_either returns, in rax, how many bytes stand
# between the fifteen registers and the frame that IRETQ takes; what a call may change is lost then, as at any interrupt.
.balign 16
isola_either_entry:
    push_all
    mov %rsp, %rdi
    mov %rsp, %rbx
    and $-16, %rsp
    call isola_either
    lea 120(%rbx, %rax), %rsp
    mov 0x68(%rbx), %rbx
    iretq

# What follows up to isola_contexts_end is not suspended itself: see `cell/aside.rs`.
#
# Keeps what the caller is in the middle of at rdi, and goes on with another; returns when the caller's is gone on with.
# What a call may change is not kept. The other arguments are those of isola_go_on.
.balign 16
.globl isola_exchange, isola_go_on, isola_contexts_end
isola_exchange:
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

# Goes on with what is kept at rsi. Before, but when nothing of the caller's stack is used any more, 0 is stored at rdx (a
# byte), then r8d at rcx.
isola_go_on:
    mov %rsi, %rsp
    movb $0, (%rdx)
    mov %r8d, (%rcx)
    restore_all
isola_contexts_end:

.noaltmacro
.text
