/*
 * Gives each processor of an emulated machine a pace: so many instructions a second and no more, whatever the others do.
 * A host of few processors can then run a machine of more, and each of them keeps its pace:
 *
 *     -plugin pace.so,pace=PATH
 *
 * The file has one line of 64 bytes for the pace, which others write while the machine runs, and one for each processor.
 * A processor that has executed so many instructions that it is ahead of its pace sleeps until it is not. One that the host
 * kept waiting catches up, unless it is too far behind: what it cannot catch up is noted in its line. One that halts owes
 * what it has executed, and owes nothing for the time in which it was halted.
 *
 * The functions of QEMU that are used are declared here; they are in the interface since its version 1.
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

/* So far a processor may be behind, in ns. */
static const int64_t MOST_BEHIND_NS = 20 * 1000 * 1000;

/* It does not sleep for less, in ns: that would take as long. */
static const int64_t LEAST_SLEEP_NS = 20 * 1000;

struct pace {
    /* So many instructions are executed before the clock is looked at; 0 where there is no pace. */
    volatile uint64_t instructions;
    /* So long they take. */
    volatile uint64_t time_ns;
    uint8_t rest[48];
};

struct line {
    /* What a processor could not catch up, in ns. */
    volatile uint64_t lost_ns;
    /* Instructions that are not in `ready_ns` yet. */
    uint64_t executed;
    /* When all others are done, at its pace. */
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

/* Which version of the interface this was compiled for: QEMU refuses versions that it does not know. */
__attribute__((visibility("default"))) int qemu_plugin_version = INTERFACE_VERSION;

static struct pace *pace;
static struct line *lines;

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Adds what was executed to what the processor is ready for. */
static void charge(struct line *line, uint64_t instructions)
{
    line->ready_ns += (int64_t)(line->executed * pace->time_ns / instructions);
    line->executed = 0;
}

/* Lets the processor wait until it is not ahead of its pace. */
static void keep(struct line *line, uint64_t instructions)
{
    charge(line, instructions);
    int64_t now = now_ns();
    if (line->ready_ns < now - MOST_BEHIND_NS) {
        /* The first time, it is behind by all the time that there was. */
        if (line->ready_ns > now - 50 * MOST_BEHIND_NS)
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
    uint64_t piece = pace->instructions;
    if (line->executed >= piece) {
        if (piece != 0)
            keep(line, piece);
        else
            line->executed = 0;
    }
}

/* Here other processors may wait for this one: it does not sleep. */
static void halts(uint64_t id, unsigned processor)
{
    (void)id;
    uint64_t piece = pace->instructions;
    if (piece != 0)
        charge(&lines[processor % PROCESSORS], piece);
}

static void resumes(uint64_t id, unsigned processor)
{
    (void)id;
    struct line *line = &lines[processor % PROCESSORS];
    int64_t now = now_ns();
    if (line->ready_ns < now)
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
