/*
 * Tests the accounting of `pace.c` with a simulated clock: exits with 0, or names the first expectation that fails.
 */
#include <stdlib.h>
#include <time.h>

static int64_t clock_ns = 1000LL * 1000 * 1000 * 1000;

static int simulated_gettime(clockid_t clock, struct timespec *now)
{
    (void)clock;
    *now = (struct timespec){ clock_ns / 1000000000, clock_ns % 1000000000 };
    return 0;
}

static int simulated_nanosleep(clockid_t clock, int flags, const struct timespec *until, struct timespec *rest)
{
    (void)clock;
    (void)flags;
    (void)rest;
    clock_ns = (int64_t)until->tv_sec * 1000000000 + until->tv_nsec;
    return 0;
}

#define clock_gettime simulated_gettime
#define clock_nanosleep simulated_nanosleep
#include "pace.c"

/* The plugin's calls into QEMU, none of which the test reaches. */
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *block)
{
    (void)block;
    abort();
}

void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t id, void (*callback)(uint64_t, struct qemu_plugin_tb *))
{
    (void)id, (void)callback;
}

void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *block, void (*callback)(unsigned, void *),
                                          int registers, void *data)
{
    (void)block, (void)callback, (void)registers, (void)data;
}

void qemu_plugin_register_vcpu_idle_cb(uint64_t id, void (*callback)(uint64_t, unsigned))
{
    (void)id, (void)callback;
}

void qemu_plugin_register_vcpu_resume_cb(uint64_t id, void (*callback)(uint64_t, unsigned))
{
    (void)id, (void)callback;
}

enum { INTERVAL = 1000 };
static const int64_t MS = 1000 * 1000;

/* Executes the instructions of one interval behind a delay by the host. */
static void run_after(int64_t delay_ns)
{
    clock_ns += delay_ns;
    executed(0, (void *)(uintptr_t)INTERVAL);
}

static void expect_lost(const char *when, int64_t lost_ms)
{
    int64_t difference_ns = (int64_t)lines[0].lost_ns - lost_ms * MS;
    if (llabs(difference_ns) > MS) {
        fprintf(stderr, "%s: %lld ns are lost, not %lld ms\n", when, (long long)lines[0].lost_ns, (long long)lost_ms);
        exit(1);
    }
}

int main(void)
{
    static struct pace shared;
    static struct line processors[PROCESSORS];
    pace = &shared;
    lines = processors;
    run_after(0);
    run_after(30000 * MS);
    expect_lost("without a pace", 0);

    shared.time_ns = 50000;
    shared.instructions = INTERVAL;
    run_after(30000 * MS);
    expect_lost("at the begin of the pace", 0);
    run_after(15 * MS);
    expect_lost("after a delay that the processor can catch up", 0);
    for (int interval = 0; interval < 2000; interval++)
        run_after(0);
    run_after(520 * MS);
    expect_lost("after half a second", 500);
    for (int interval = 0; interval < 2000; interval++)
        run_after(0);
    run_after(3020 * MS);
    expect_lost("after three seconds more", 3500);

    halts(0, 0);
    clock_ns += 30000 * MS;
    resumes(0, 0);
    run_after(0);
    expect_lost("after a halt", 3500);

    shared.instructions = 0;
    run_after(0);
    run_after(30000 * MS);
    halts(0, 0);
    shared.instructions = INTERVAL;
    resumes(0, 0);
    run_after(10 * MS);
    expect_lost("at the begin of the next pace", 3500);
    return 0;
}
