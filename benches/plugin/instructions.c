/*
 * Counts the instructions of each processor of an emulated machine, in a file that other processes read while the
 * machine runs:
 *
 *     -plugin instructions.so,counters=PATH
 *
 * The file has a line of 64 bytes for each processor, with the count in its first 8 bytes. QEMU runs each processor on
 * one thread, so the counts need no lock. The plugin counts translated blocks: a block that an exception leaves half-way
 * counts as a whole (under one in a hundred).
 *
 * The plugin declares the functions of QEMU that it uses; version 1 of the interface has all of them.
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

/* The interface version of this build: QEMU rejects unknown versions. */
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
