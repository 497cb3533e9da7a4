// Uses processor time or memory: `scheduling spin SECONDS` prints the milliseconds of processor time that it got,
// `scheduling leak` writes to memory without an end, `scheduling fork COUNT` prints the least microseconds of a child's life.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static void spin(double seconds) {
    double end = now(CLOCK_MONOTONIC) + seconds;
    while (now(CLOCK_MONOTONIC) < end)
        for (volatile int i = 0; i < 10000; i++)
            ;
    printf("%.0f\n", now(CLOCK_PROCESS_CPUTIME_ID) * 1000);
}

static void leak(void) {
    for (;;) {
        char *memory = malloc(1 << 20);
        if (!memory)
            exit(7);
        memset(memory, 1, 1 << 20);
    }
}

static void forks(int count) {
    double least = 1e9;
    for (int i = 0; i < count; i++) {
        double start = now(CLOCK_MONOTONIC);
        if (!fork())
            _exit(0);
        wait(NULL);
        double time = now(CLOCK_MONOTONIC) - start;
        if (time < least)
            least = time;
    }
    printf("%.1f\n", least * 1e6);
}

int main(int count, char **arguments) {
    if (count < 2)
        return 1;
    if (!strcmp(arguments[1], "spin") && count > 2)
        spin(atof(arguments[2]));
    else if (!strcmp(arguments[1], "leak"))
        leak();
    else if (!strcmp(arguments[1], "fork") && count > 2)
        forks(atoi(arguments[2]));
    else
        return 1;
    return 0;
}
