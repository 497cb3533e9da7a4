/*
 * Limits each processor of an emulated machine to a pace: a rate of instructions, independent of the other processors.
 * A host of few processors can then run a machine with more, whose processors all keep their pace:
 *
 *     -plugin pace.so,pace=PATH
 *
 * The file has a line of 64 bytes for the pace, which another process writes while the machine runs, and a line for each
 * processor. A processor ahead of its pace sleeps. A processor that the host delayed catches up, for a limited time; its
 * line has the time beyond that limit. Before a halt, a processor is charged for its instructions; halted time is free.
 *
 * The plugin declares the functions of QEMU that it uses; version 1 of the interface has all of them.
 */
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { PROCESSORS = 64, NO_REGISTERS = 0 };

/* The longest time that a processor may be behind and still catch up, in ns. */
static const int64_t MOST_BEHIND_NS = 20 * 1000 * 1000;

/* The shortest sleep, in ns: a shorter one would take as long. */
static const int64_t LEAST_SLEEP_NS = 20 * 1000;

struct pace {
    /* The number of instructions between two reads of the clock; 0 without a pace. */
    volatile uint64_t instructions;
    /* The time of these instructions at the pace, in ns. */
    volatile uint64_t time_ns;
    uint8_t rest[48];
};

struct line {
    /* The time that the processor could not catch up, in ns. */
    volatile uint64_t lost_ns;
    /* Instructions not yet charged to `ready_ns`. */
    uint64_t executed;
    /* The time at which the charged instructions end at the pace; 0 while the processor runs without a pace. */
    int64_t ready_ns;
    uint8_t rest[40];
};

struct qemu_plugin_tb;
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *block);
void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t id, void (*translated)(uint64_t, struct qemu_plugin_tb *));
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *block, void (*executed)(unsigned, void *),
                                          int registers, void *data);
void qemu_plugin_register_vcpu_idle_cb(uint64_t id, void (*halts)(uint64_t, unsigned));
void qemu_plugin_register_vcpu_resume_cb(uint64_t id, void (*resumes)(uint64_t, unsigned));

/* The interface version of this build: QEMU rejects unknown versions. */
__attribute__((visibility("default"))) int qemu_plugin_version = INTERFACE_VERSION;

static struct pace *pace;
static struct line *lines;

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Charges the executed instructions to `ready_ns`. */
static void charge(struct line *line, uint64_t instructions)
{
    line->ready_ns += (int64_t)(line->executed * pace->time_ns / instructions);
    line->executed = 0;
}

/* Charges the instructions, and sleeps while the processor is ahead of its pace. */
static void enforce(struct line *line, uint64_t instructions)
{
    int64_t now = now_ns();
    /* The pace begins here. Time before it does not count, so every later delay does, however long: there is no length
     * above which a delay cannot come from a busy host. */
    if (line->ready_ns == 0)
        line->ready_ns = now;
    charge(line, instructions);
    if (line->ready_ns < now - MOST_BEHIND_NS) {
        line->lost_ns += (uint64_t)(now - MOST_BEHIND_NS - line->ready_ns);
        line->ready_ns = now - MOST_BEHIND_NS;
    }
    if (line->ready_ns > now + LEAST_SLEEP_NS) {
        struct timespec until = { line->ready_ns / 1000000000, line->ready_ns % 1000000000 };
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
    }
}

static void executed(unsigned processor, void *instructions)
{
    struct line *line = &lines[processor % PROCESSORS];
    line->executed += (uintptr_t)instructions;
    uint64_t interval = pace->instructions;
    if (line->executed < interval)
        return;
    if (interval != 0) {
        enforce(line, interval);
    } else {
        line->executed = 0;
        line->ready_ns = 0;
    }
}

/* Other processors may wait for this one here, so it does not sleep. */
static void halts(uint64_t id, unsigned processor)
{
    (void)id;
    uint64_t interval = pace->instructions;
    struct line *line = &lines[processor % PROCESSORS];
    if (interval != 0 && line->ready_ns != 0)
        charge(line, interval);
}

static void resumes(uint64_t id, unsigned processor)
{
    (void)id;
    struct line *line = &lines[processor % PROCESSORS];
    int64_t now = now_ns();
    if (line->ready_ns != 0 && line->ready_ns < now)
        line->ready_ns = now;
}

static void translated(uint64_t id, struct qemu_plugin_tb *block)
{
    (void)id;
    qemu_plugin_register_vcpu_tb_exec_cb(block, executed, NO_REGISTERS,
                                         (void *)(uintptr_t)qemu_plugin_tb_n_insns(block));
}

__attribute__((visibility("default"))) int qemu_plugin_install(uint64_t id, const void *info, int argc, char **argv)
{
    static const char option[] = "pace=";
    (void)info;
    if (argc != 1 || strncmp(argv[0], option, sizeof option - 1) != 0) {
        fprintf(stderr, "pace: usage: -plugin pace.so,pace=PATH\n");
        return -1;
    }
    const char *path = argv[0] + sizeof option - 1;
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    size_t len = sizeof *pace + PROCESSORS * sizeof *lines;
    if (file < 0 || ftruncate(file, (off_t)len) != 0) {
        perror(path);
        return -1;
    }
    pace = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (pace == MAP_FAILED) {
        perror(path);
        return -1;
    }
    lines = (struct line *)(pace + 1);
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    qemu_plugin_register_vcpu_idle_cb(id, halts);
    qemu_plugin_register_vcpu_resume_cb(id, resumes);
    return 0;
}
