# The entry of an image. A PVH loader (Xen's "x86/HVM direct boot ABI") enters it in 32-bit protected mode, with paging
# and interrupts off, and ebx = physical address of the start info. This code continues in long mode, at the image's
# link address, on the boot stack, with
#
#     0 .. 4 GiB                        mapped at its own address, and at DIRECT_MAP
#     the first GiB                     mapped at IMAGE
#
# all readable, writable and executable: early tables, which the image soon replaces. Processors that start later use
# them again.
#
# All addresses are relative to the entry, which the link script places at physical 1 MiB. So this file contains no
# absolute address, and host programs that link the crate for tests can contain it.

.set IMAGE, 0xffffffff80000000
.set ENTRY_PHYSICAL, 0x100000

.section .text.isola_entry, "ax"
.code32
.globl isola_pvh_entry
isola_pvh_entry:
    cli
    cld
    mov %ebx, %ebp
    mov $(isola_boot_stack_top - isola_pvh_entry + ENTRY_PHYSICAL), %esp

    # tables: +0 level 4, +0x1000 level 3 of the low addresses and the direct map, +0x2000 level 3 of the image, +0x3000
    # .. +0x7000 four of level 2 with leaves of 2 MiB
    mov $(isola_early_tables - isola_pvh_entry + ENTRY_PHYSICAL), %edi
    lea 0x1003(%edi), %eax
    mov %eax, (%edi)
    mov %eax, 256 * 8(%edi)
    add $0x1000, %eax
    mov %eax, 511 * 8(%edi)
    add $0x1000, %eax
    mov %eax, 0x2000 + 510 * 8(%edi)
    mov %eax, 0x1000(%edi)
    add $0x1000, %eax
    mov %eax, 0x1008(%edi)
    add $0x1000, %eax
    mov %eax, 0x1010(%edi)
    add $0x1000, %eax
    mov %eax, 0x1018(%edi)
    lea 0x3000(%edi), %edx
    mov $0x83, %eax
    mov $2048, %ecx
2:  mov %eax, (%edx)
    add $8, %edx
    add $0x200000, %eax
    dec %ecx
    jnz 2b

    mov %edi, %cr3
    mov $0x620, %eax                # CR4: PAE, and SSE, which compiled code uses
    mov %eax, %cr4
    mov $0xc0000080, %ecx           # EFER: long mode, no-execute
    rdmsr
    or $0x900, %eax
    wrmsr
    mov $0x80010033, %eax           # CR0: paging, write protection, native FPU errors, protected mode
    mov %eax, %cr0

    push $(isola_early_gdt - isola_pvh_entry + ENTRY_PHYSICAL)
    push $0x170000                  # the limit, 0x17, in the upper half: the operand begins there
    lgdt 2(%esp)
    push $8
    push $(isola_long_mode - isola_pvh_entry + ENTRY_PHYSICAL)
    lret

.code64
isola_long_mode:
    mov $16, %eax
    mov %eax, %ds
    mov %eax, %es
    mov %eax, %ss
    xor %eax, %eax
    mov %eax, %fs
    mov %eax, %gs
    lea 3f(%rip), %rax
    mov $IMAGE, %rcx
    add %rcx, %rax
    jmp *%rax
3:  lea isola_boot_stack_top(%rip), %rsp
    mov %ebp, %edi
    xor %ebp, %ebp                  # the outermost frame, where backtraces end
    call *isola_after_boot@GOTPCREL(%rip)
    ud2

.balign 8
.globl isola_early_gdt
isola_early_gdt:
    .quad 0
    .quad 0x00af9b000000ffff        # 64-bit code
    .quad 0x00cf93000000ffff        # data

# Bounds of the image for Rust code: weak symbols, as a host program does not define them.
.weak isola_after_boot, isola_text_start, isola_text_end, isola_rodata_start, isola_rodata_end
.weak isola_data_start, isola_data_end, isola_variables_end
.section .data.isola_bounds, "aw"
.balign 8
.globl isola_bounds
isola_bounds:
    .quad isola_text_start, isola_text_end
    .quad isola_rodata_start, isola_rodata_end
    .quad isola_data_start, isola_data_end, isola_variables_end

.section .isola_boot, "aw", @nobits
.balign 4096
.globl isola_early_tables
isola_early_tables:
    .skip 0x7000
    .skip 0x8000
# Used by restart/restart.s, which is another object file in images without whole-program optimisation.
.globl isola_boot_stack_top
isola_boot_stack_top:

.text
