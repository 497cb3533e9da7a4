# The start of a processor: in real mode, at the page below 1 MiB that the startup interrupt named, which contains a
# copy of this trampoline. With the image's early tables it enters long mode and the image's code, and finds its block
# (control_block.rs) by its APIC id.
#
# control_block.rs and mod.rs also define the block's layout and TRAMPOLINE, and control_block.rs asserts the layout.

.set TRAMPOLINE, 0x8000
.set SLOT_BYTES, 128
.set TABLE_COUNT, 8
.set SLOT_STATE, 4
.set SLOT_STACK, 8
.set SLOT_ROOT, 16
.set STATE_STARTING, 1

.section .rodata.isola_trampoline, "a"
.balign 16
.globl isola_trampoline
isola_trampoline:
.code16
    cli
    cld
    xor %ax, %ax
    mov %ax, %ds
    lgdtl TRAMPOLINE + trampoline_gdt_pointer - isola_trampoline
    mov $0x11, %eax                 # CR0: protected mode
    mov %eax, %cr0
    ljmpl $8, $(TRAMPOLINE + trampoline_protected - isola_trampoline)
.code32
trampoline_protected:
    mov $16, %eax
    mov %eax, %ds
    mov %eax, %es
    mov %eax, %ss
    mov $0x620, %eax                # CR4: PAE, SSE
    mov %eax, %cr4
    mov TRAMPOLINE + trampoline_root - isola_trampoline, %eax
    mov %eax, %cr3
    mov $0xc0000080, %ecx           # EFER: long mode, no-execute
    rdmsr
    or $0x900, %eax
    wrmsr
    mov $0x80010033, %eax           # CR0: paging, write protection, FPU; caches on
    mov %eax, %cr0
    ljmpl $24, $(TRAMPOLINE + trampoline_long - isola_trampoline)
.code64
trampoline_long:
    mov TRAMPOLINE + trampoline_entry - isola_trampoline, %rax
    jmp *%rax

.balign 8
trampoline_gdt:
    .quad 0
    .quad 0x00cf9b000000ffff        # 32-bit code
    .quad 0x00cf93000000ffff        # data
    .quad 0x00af9b000000ffff        # 64-bit code
trampoline_gdt_pointer:
    .word 31
    .long TRAMPOLINE + trampoline_gdt - isola_trampoline
.balign 8
.globl isola_trampoline_root
isola_trampoline_root:
trampoline_root:
    .quad 0                         # physical address of the early tables
.globl isola_trampoline_entry
isola_trampoline_entry:
trampoline_entry:
    .quad 0                         # isola_processor_entry
.globl isola_trampoline_end
isola_trampoline_end:

.section .text.isola_processor_entry, "ax"
.balign 16
.globl isola_processor_entry
isola_processor_entry:
    xor %eax, %eax                  # the APIC id: of leaf 0xb where there is one, else of leaf 1
    cpuid
    cmp $0xb, %eax
    jb 1f
    mov $0xb, %eax
    xor %ecx, %ecx
    cpuid
    test %ebx, %ebx
    mov %edx, %r8d
    jnz 2f
1:  mov $1, %eax
    cpuid
    shr $24, %ebx
    mov %ebx, %r8d
2:  mov isola_core_control_blocks@GOTPCREL(%rip), %rax
    mov TABLE_COUNT(%rax), %rcx
    mov (%rax), %rdi
    test %rcx, %rcx
    jz 6f
3:  cmp %r8d, (%rdi)
    jne 4f
    cmpl $STATE_STARTING, SLOT_STATE(%rdi)
    je 5f
4:  add $SLOT_BYTES, %rdi
    dec %rcx
    jnz 3b
6:  cli                             # not expected: no block waits for this core
    hlt
    jmp 6b
5:  mov SLOT_ROOT(%rdi), %rax
    mov %rax, %cr3
    mov SLOT_STACK(%rdi), %rsp
    xor %eax, %eax
    mov %eax, %ds
    mov %eax, %es
    mov %eax, %fs
    mov %eax, %gs
    xor %ebp, %ebp
    call *isola_processor_main@GOTPCREL(%rip)
    ud2

# The handler of all interrupts of a parked core, whose only purpose is to wake it.
.section .text.isola_parked_interrupt, "ax"
.balign 16
.globl isola_parked_interrupt
isola_parked_interrupt:
    push $0
    call *isola_parked_interrupted@GOTPCREL(%rip)
    add $8, %rsp
    iretq

.text
