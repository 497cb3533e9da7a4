# Entry to and exit from user mode.
#
# A core enters user mode by a call of isola_user_enter, and leaves it by a system call, an exception or an interrupt,
# which return from that call. In user mode the core's KERNEL_GS_BASE is the address of its block (core_block.rs), and
# its GS base is the program's. Interrupts are off in ring 0.
#
# A non-maskable interrupt can arrive at any instruction here, with either GS base. Its handler sets the base that the
# image's code expects, and restores the former one (core_block.rs); it recognises this code by the bounds
# isola_user_begin and isola_user_end, and the stubs of vectors.s that were entered from user mode by the stack of traps.
# The stack pointer may be the program's then, but such interrupts use a stack of their own.

# Offsets in UserContext (abi); asserted in core_block.rs.
.set RAX, 0x00
.set RBX, 0x08
.set RCX, 0x10
.set RDX, 0x18
.set RSI, 0x20
.set RDI, 0x28
.set RBP, 0x30
.set R8, 0x38
.set R9, 0x40
.set R10, 0x48
.set R11, 0x50
.set R12, 0x58
.set R13, 0x60
.set R14, 0x68
.set R15, 0x70
.set RIP, 0x78
.set RFLAGS, 0x80
.set RSP, 0x88
.set FS_BASE, 0x90
.set GS_BASE, 0x98
.set XMM, 0xa0
.set MXCSR, 0x1a0

# Offsets in a core's block; asserted likewise. The block is above the stack of traps.
.set CONTEXT, 0x00
.set KERNEL_GS, 0x08
.set KERNEL_RSP, 0x10
.set USER_RSP, 0x18
.set MXCSR_MASK, 0x20
.set QUICK_NUMBERS, 0x28
.set QUICK_ANSWERS, 0x30

# Asserted in mod.rs.
.set SYSTEM_CALL, 0x100
.set BY_IRET, 1
.set CLEAR_SELECTORS, 2
.set USER_DATA, 0x1b
.set USER_CODE, 0x23
.set KERNEL_DATA, 0x10
.set QUICK_NUMBERS_END, 256
.set QUICK_ANSWER_MASK, 0x38
.set TRAP_OR_RESUME_FLAG, 0x10100

.altmacro
.macro each_user_sse instruction
    .set number, 0
    .rept 16
        \instruction %number
        .set number, number + 1
    .endr
.endm
.macro load_user_sse number
    movaps XMM + 16 * \number(%rdi), %xmm\number
.endm
.macro store_user_sse number
    movaps %xmm\number, XMM + 16 * \number(%rax)
.endm

# Saves the SSE registers and MXCSR in the context at rax, and loads the kernel's MXCSR.
.macro save_sse_of_user
    each_user_sse store_user_sse
    stmxcsr MXCSR(%rax)
    ldmxcsr isola_kernel_mxcsr(%rip)
.endm

# Returns from isola_user_enter, on its caller's stack, with the kind of the trap in rax and the error code in rdx.
.macro return_to_kernel
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbp
    pop %rbx
    ret
.endm

.section .rodata.isola_user, "a"
.balign 4
isola_kernel_mxcsr:
    .long 0x1f80

.section .text.isola_user, "ax"

# rdi = the context, rsi = the core's block, edx = flags
.balign 16
.globl isola_user_enter, isola_user_begin, isola_user_end, isola_user_system_call
isola_user_enter:
    push %rbx
    push %rbp
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rdi, CONTEXT(%rsi)
    mov %rsp, KERNEL_RSP(%rsi)
    rdgsbase %rax
    mov %rax, KERNEL_GS(%rsi)
    mov MXCSR(%rdi), %eax
    and MXCSR_MASK(%rsi), %eax
    mov %eax, MXCSR(%rdi)
    ldmxcsr MXCSR(%rdi)
    each_user_sse load_user_sse
isola_user_begin:
    test $CLEAR_SELECTORS, %edx
    jz 1f
    xor %eax, %eax
    mov %eax, %ds
    mov %eax, %es
    mov %eax, %fs
    mov %eax, %gs
1:  mov FS_BASE(%rdi), %rax
    wrfsbase %rax
    mov GS_BASE(%rdi), %rax
    wrgsbase %rax
    mov RBX(%rdi), %rbx
    mov RSI(%rdi), %rsi
    mov RBP(%rdi), %rbp
    mov R8(%rdi), %r8
    mov R9(%rdi), %r9
    mov R10(%rdi), %r10
    mov R12(%rdi), %r12
    mov R13(%rdi), %r13
    mov R14(%rdi), %r14
    mov R15(%rdi), %r15
    mov RCX(%rdi), %rcx
    mov R11(%rdi), %r11
    test $BY_IRET, %edx
    mov RDX(%rdi), %rdx
    mov RAX(%rdi), %rax
    jnz 2f
    mov RSP(%rdi), %rsp
    mov RDI(%rdi), %rdi
    sysretq
2:  pushq $USER_DATA
    pushq RSP(%rdi)
    pushq RFLAGS(%rdi)
    pushq $USER_CODE
    pushq RIP(%rdi)
    mov RDI(%rdi), %rdi
    iretq

# The target of SYSCALL: rcx = the program's instruction pointer, r11 = its flags. All other registers are its own.
#
# A quick call has its answer in memory and changes rax only, so no register is saved.
.balign 16
isola_user_system_call:
    swapgs
    mov %rsp, %gs:USER_RSP
    cmp $QUICK_NUMBERS_END, %rax
    jae 1f
    mov %gs:QUICK_NUMBERS, %rsp
    movzbl (%rsp, %rax), %esp
    test %esp, %esp
    jz 1f
    # SYSRET does not restore these flags as IRET does.
    test $TRAP_OR_RESUME_FLAG, %r11d
    jnz 1f
    and $QUICK_ANSWER_MASK, %esp
    add %gs:QUICK_ANSWERS, %rsp
    mov (%rsp), %rax
    mov %gs:USER_RSP, %rsp
    swapgs
    sysretq
1:  mov %gs:CONTEXT, %rsp
    mov %rax, RAX(%rsp)
    mov %rdx, RDX(%rsp)
    mov %gs:USER_RSP, %rax
    mov %rax, RSP(%rsp)
    mov %gs:KERNEL_RSP, %rdx
    mov %gs:KERNEL_GS, %rax
    swapgs
    mov %rcx, RCX(%rsp)
    mov %rcx, RIP(%rsp)
    rdgsbase %rcx
    mov %rcx, GS_BASE(%rsp)
    wrgsbase %rax
    rdfsbase %rcx
    mov %rcx, FS_BASE(%rsp)
    mov %rsp, %rax
    mov %rdx, %rsp
    mov %r11, R11(%rax)
    mov %r11, RFLAGS(%rax)
    mov %rbx, RBX(%rax)
    mov %rsi, RSI(%rax)
    mov %rdi, RDI(%rax)
    mov %rbp, RBP(%rax)
    mov %r8, R8(%rax)
    mov %r9, R9(%rax)
    mov %r10, R10(%rax)
    mov %r12, R12(%rax)
    mov %r13, R13(%rax)
    mov %r14, R14(%rax)
    mov %r15, R15(%rax)
    save_sse_of_user
    mov $SYSTEM_CALL, %eax
    xor %edx, %edx
    return_to_kernel

# An interrupt in user mode, on the stack of traps: the vector is pushed, without an error code.
.balign 16
.globl isola_user_interrupt, isola_user_trap
isola_user_interrupt:
    pushq (%rsp)
    movq $0, 8(%rsp)

# An exception in user mode, on the stack of traps: vector and error code are pushed. All registers are the program's.
isola_user_trap:
    clac
    cld
    push %rax
    push %rcx
    # rcx, rax, vector, error code, rip, cs, flags, rsp, ss; then the block
    mov 72 + CONTEXT(%rsp), %rax
    mov %rbx, RBX(%rax)
    mov %rdx, RDX(%rax)
    mov %rsi, RSI(%rax)
    mov %rdi, RDI(%rax)
    mov %rbp, RBP(%rax)
    mov %r8, R8(%rax)
    mov %r9, R9(%rax)
    mov %r10, R10(%rax)
    mov %r11, R11(%rax)
    mov %r12, R12(%rax)
    mov %r13, R13(%rax)
    mov %r14, R14(%rax)
    mov %r15, R15(%rax)
    mov (%rsp), %rcx
    mov %rcx, RCX(%rax)
    mov 8(%rsp), %rcx
    mov %rcx, RAX(%rax)
    mov 32(%rsp), %rcx
    mov %rcx, RIP(%rax)
    mov 48(%rsp), %rcx
    mov %rcx, RFLAGS(%rax)
    mov 56(%rsp), %rcx
    mov %rcx, RSP(%rax)
    rdgsbase %rcx
    mov %rcx, GS_BASE(%rax)
    mov 72 + KERNEL_GS(%rsp), %rcx
    wrgsbase %rcx
    rdfsbase %rcx
    mov %rcx, FS_BASE(%rax)
    # The processor has loaded a null selector.
    mov $KERNEL_DATA, %ecx
    mov %ecx, %ss
    save_sse_of_user
    mov 16(%rsp), %rax
    mov 24(%rsp), %rdx
    mov 72 + KERNEL_RSP(%rsp), %rsp
    return_to_kernel
isola_user_end:

.noaltmacro
.text
