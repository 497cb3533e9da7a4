/*
 * Counts the instructions that each processor of an emulated machine executes, into a file that others read
 * while the machine runs:
 *
 *     -plugin instructions.so,counters=PATH
 *
 * The file has one line of 64 bytes a processor, the count in its first 8 bytes. A processor has one thread in
 * QEMU, and a line of its own, so no count needs a lock. What is counted is what is translated: a block that an
 * exception leaves half-way counts as a whole (under one in a hundred).
 *
 * The functions of QEMU that are used are declared here; they are in the interface since its version 1.
 */
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PROCESSORS = 64, NO_REGISTERS = 0 };

struct line {
    volatile uint64_t executed;
    uint8_t rest[56];
};

struct qemu_plugin_tb;
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *block);
void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t id, void (*translated)(uint64_t, struct qemu_plugin_tb *));
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *block, void (*executed)(unsigned, void *),
                                          int registers, void *data);

/* Which version of the interface this was compiled for: QEMU refuses versions that it does not know. */
__attribute__((visibility("default"))) int qemu_plugin_version = INTERFACE_VERSION;

static struct line *lines;

static void executed(unsigned processor, void *instructions)
{
    if (processor < PROCESSORS)
        lines[processor].executed += (uintptr_t)instructions;
}

static void translated(uint64_t id, struct qemu_plugin_tb *block)
{
    (void)id;
    qemu_plugin_register_vcpu_tb_exec_cb(block, executed, NO_REGISTERS,
                                         (void *)(uintptr_t)qemu_plugin_tb_n_insns(block));
}

__attribute__((visibility("default"))) int qemu_plugin_install(uint64_t id, const void *info, int argc, char **argv)
{
    static const char option[] = "counters=";
    (void)info;
    if (argc != 1 || strncmp(argv[0], option, sizeof option - 1) != 0) {
        fprintf(stderr, "instructions: usage: -plugin instructions.so,counters=PATH\n");
        return -1;
    }
    const char *path = argv[0] + sizeof option - 1;
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || ftruncate(file, PROCESSORS * sizeof *lines) != 0) {
        perror(path);
        return -1;
    }
    lines = mmap(NULL, PROCESSORS * sizeof *lines, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (lines == MAP_FAILED) {
        perror(path);
        return -1;
    }
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    return 0;
}
