# The entry points of the 256 interrupt vectors, 16 bytes apart, and what they lead to.
#
# Vectors from 32 on are interrupts. They come only in `window` and `halt` (mod.rs), which declare that all
# registers a call may change are lost there: so nothing is saved here. Those below are exceptions, after which
# nothing goes on: all registers are kept for the report, in the order of `ExceptionFrame` (frame.rs).

.altmacro
.macro vector number, has_code
    .balign 16
    .if \number < 32
        .if \has_code == 0
            push $0
        .endif
        push $\number
        jmp isola_exception_entry
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

.balign 16
isola_exception_entry:
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
    mov %rsp, %rdi
    and $-16, %rsp
    call isola_exception
    ud2

.noaltmacro
.text
