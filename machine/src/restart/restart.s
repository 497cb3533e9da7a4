# The restart of an image, in long mode, in any address space that maps the image, with interrupts off and
#
#     rdi, rsi   the copy of the initialised variables: address, and length in bytes
#     rdx        physical address of the loader's start info
#
# Switches to the early tables (boot/entry.s), which map the image at the same address, and to the boot stack. Then it
# restores the variables and zeroes the others. Persistent variables (.bss.isola_persistent), tables and stack are
# neither overwritten nor zeroed.

.section .text.isola_restart, "ax"
.balign 16
.globl isola_restart
isola_restart:
    cli
    cld
    mov isola_early_tables@GOTPCREL(%rip), %rax
    mov $0xffffffff80000000, %rcx   # IMAGE
    sub %rcx, %rax
    mov %rax, %cr3
    mov isola_boot_stack_top@GOTPCREL(%rip), %rsp
    mov %rdx, %r12
    mov %rsi, %rcx
    mov %rdi, %rsi
    mov isola_data_start@GOTPCREL(%rip), %rdi
    rep movsb
    mov isola_zeroed_start@GOTPCREL(%rip), %rdi
    mov isola_zeroed_end@GOTPCREL(%rip), %rcx
    sub %rdi, %rcx
    shr $3, %rcx
    xor %eax, %eax
    rep stosq
    mov %r12, %rdi
    xor %ebp, %ebp                  # the outermost frame, where backtraces end
    call *isola_after_boot@GOTPCREL(%rip)
    ud2

.weak isola_after_boot, isola_data_start, isola_zeroed_start, isola_zeroed_end

.text
