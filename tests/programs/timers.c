// Timers: descriptors, signals, intervals, processor time; clocks with and without system calls.
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MS 1000000L

static long long now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

static struct itimerspec setting(long interval_ns, long value_ns) {
    return (struct itimerspec){{interval_ns / 1000000000, interval_ns % 1000000000},
                               {value_ns / 1000000000, value_ns % 1000000000}};
}

// The clocks of the vDSO lie between those of the calls.
static void clocks(void) {
    static const clockid_t list[] = {CLOCK_REALTIME, CLOCK_MONOTONIC, CLOCK_MONOTONIC_RAW, CLOCK_BOOTTIME, CLOCK_TAI};
    int right = 1;
    for (int index = 0; index < 5; index++) {
        if (list[index] == CLOCK_TAI) continue;
        for (int round = 0; round < 200; round++) {
            struct timespec before, between, after;
            syscall(SYS_clock_gettime, list[index], &before);
            clock_gettime(list[index], &between);
            syscall(SYS_clock_gettime, list[index], &after);
            long long first = before.tv_sec * 1000000000LL + before.tv_nsec;
            long long second = between.tv_sec * 1000000000LL + between.tv_nsec;
            long long third = after.tv_sec * 1000000000LL + after.tv_nsec;
            if (first > second || second > third) right = 0;
        }
    }
    struct timeval day;
    struct timespec before, after;
    clock_gettime(CLOCK_REALTIME, &before);
    gettimeofday(&day, NULL);
    clock_gettime(CLOCK_REALTIME, &after);
    long long first = before.tv_sec * 1000000LL + before.tv_nsec / 1000, third = after.tv_sec * 1000000LL + after.tv_nsec / 1000;
    long long second = day.tv_sec * 1000000LL + day.tv_usec;
    printf("clocks agree: %d, time of day: %d\n", right, first <= second && second <= third);
    // Linux's time() is that of its last tick.
    long long difference = time(NULL) - day.tv_sec;
    printf("time: %d\n", difference >= -1 && difference <= 1);
    struct timespec resolution;
    int result = clock_getres(CLOCK_MONOTONIC, &resolution);
    printf("resolution: %d %ld\n", result, resolution.tv_nsec);
    result = clock_gettime(99, &before);
    printf("no such clock: %d %d\n", result, errno);
    unsigned core = 99;
    result = getcpu(&core, NULL);
    printf("core: %d %d\n", result, core < 64);
    const unsigned char *image = (void *)getauxval(AT_SYSINFO_EHDR);
    printf("image: %d\n", image != NULL && memcmp(image, "\177ELF", 4) == 0);
    char line[256];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps)) {
        unsigned long start, end;
        char rights[8];
        if (strstr(line, "[vdso]") && sscanf(line, "%lx-%lx %4s", &start, &end, rights) == 3)
            printf("vdso %s at its address: %d\n", rights, start == (unsigned long)image);
    }
    fclose(maps);
}

static void descriptors(void) {
    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    uint64_t count;
    printf("not armed: %zd", read(timer, &count, 8));
    printf(" %d\n", errno == EAGAIN);
    long long start = now();
    struct itimerspec wanted = setting(0, 10 * MS), old;
    timerfd_settime(timer, 0, &wanted, NULL);
    struct pollfd entry = {timer, POLLIN, 0};
    int ready = poll(&entry, 1, 5000);
    printf("poll: %d, in time: %d\n", ready, now() - start >= 10 * MS);
    printf("read: %zd", read(timer, &count, 8));
    printf(" %llu\n", (unsigned long long)count);
    wanted = setting(2 * MS, 2 * MS);
    timerfd_settime(timer, 0, &wanted, NULL);
    usleep(21000);
    printf("several: %d\n", read(timer, &count, 8) == 8 && count >= 10);
    wanted = setting(0, 0);
    timerfd_settime(timer, 0, &wanted, &old);
    printf("former interval: %ld\n", old.it_interval.tv_nsec);
    wanted = setting(0, 1);
    timerfd_settime(timer, TFD_TIMER_ABSTIME, &wanted, NULL);
    printf("past: %zd\n", read(timer, &count, 8));
    printf("errors: %d", timerfd_create(99, 0));
    printf(" %d", timerfd_settime(1, 0, &wanted, NULL));
    printf(" %d\n", errno == EINVAL || errno == EBADF);
    close(timer);
}

static volatile sig_atomic_t handled, from_timer, value;
static volatile int overruns;

static void handle(int signal, siginfo_t *info, void *context) {
    (void)context;
    handled++;
    from_timer = info->si_code == SI_TIMER;
    value = info->si_value.sival_int;
    overruns += info->si_overrun;
    (void)signal;
}

static void signals(void) {
    struct sigaction action = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO};
    sigaction(SIGRTMIN, &action, NULL);
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN, .sigev_value.sival_int = 77};
    timer_t timer;
    timer_create(CLOCK_REALTIME, &event, &timer);
    struct itimerspec wanted = setting(0, 100 * MS);
    timer_settime(timer, 0, &wanted, NULL);
    struct timespec second = {1, 0};
    printf("sleep: %d", nanosleep(&second, &second));
    printf(" handled %d, from a timer %d, value %d, overruns %d\n", handled, from_timer, value, overruns);
    // While the signal is blocked, expirations are counted.
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN);
    sigprocmask(SIG_BLOCK, &set, NULL);
    wanted = setting(1 * MS, 1 * MS);
    timer_settime(timer, 0, &wanted, NULL);
    usleep(20000);
    handled = overruns = 0;
    wanted = setting(0, 0);
    siginfo_t info;
    int got = sigwaitinfo(&set, &info);
    printf("waited: %d, overruns: %d %d\n", got == SIGRTMIN, info.si_overrun >= 10,
           timer_getoverrun(timer) == info.si_overrun);
    timer_settime(timer, 0, &wanted, NULL);
    sigprocmask(SIG_UNBLOCK, &set, NULL);
    printf("stopped: handled %d\n", handled);
    printf("delete: %d %d\n", timer_delete(timer), 0);
    // With a thread of the C library.
    clockid_t clock;
    printf("clock of this process: %d\n", clock_getcpuclockid(0, &clock) == 0 && clock_gettime(clock, &second) == 0);
    printf("clock of this thread: %d\n", pthread_getcpuclockid(pthread_self(), &clock) == 0 && clock_gettime(clock, &second) == 0);
}

static void notified(union sigval argument) { *(volatile int *)argument.sival_ptr = 1; }

static void threads(void) {
    volatile int done = 0;
    struct sigevent event = {.sigev_notify = SIGEV_THREAD, .sigev_notify_function = notified};
    event.sigev_value.sival_ptr = (void *)&done;
    timer_t timer;
    printf("create: %d\n", timer_create(CLOCK_MONOTONIC, &event, &timer));
    struct itimerspec wanted = setting(0, 3 * MS);
    timer_settime(timer, 0, &wanted, NULL);
    for (int round = 0; round < 1000 && !done; round++) usleep(1000);
    printf("notified: %d\n", done);
    timer_delete(timer);
}

static volatile sig_atomic_t ticks;
static void tick(int signal) { (void)signal; ticks++; }

static void intervals(void) {
    signal(SIGALRM, tick);
    signal(SIGVTALRM, tick);
    signal(SIGPROF, tick);
    struct itimerval wanted = {{0, 2000}, {0, 2000}}, none = {{0, 0}, {0, 0}}, left;
    setitimer(ITIMER_REAL, &wanted, NULL);
    for (ticks = 0; ticks < 3;) pause();
    setitimer(ITIMER_REAL, &none, &left);
    printf("real: %d, interval %ld\n", ticks >= 3, (long)left.it_interval.tv_usec);
    int kinds[] = {ITIMER_VIRTUAL, ITIMER_PROF};
    for (int kind = 0; kind < 2; kind++) {
        wanted = (struct itimerval){{0, 0}, {0, 10000}};
        ticks = 0;
        setitimer(kinds[kind], &wanted, NULL);
        while (!ticks) {}
        getitimer(kinds[kind], &left);
        printf("processor time: %d, left %ld\n", (int)ticks, (long)left.it_value.tv_usec);
    }
    printf("alarm: %u", alarm(100));
    printf(" %u\n", alarm(0));
    pid_t child = fork();
    if (child == 0) {
        signal(SIGALRM, SIG_DFL);
        ualarm(3000, 0);
        for (;;) pause();
    }
    int status;
    waitpid(child, &status, 0);
    printf("child ended by %d\n", WIFSIGNALED(status) ? WTERMSIG(status) : -1);
    child = fork();
    if (child == 0) {
        struct rlimit limit = {1, 1};
        signal(SIGXCPU, SIG_DFL);
        setrlimit(RLIMIT_CPU, &limit);
        for (;;) {}
    }
    waitpid(child, &status, 0);
    printf("limit ended by %d\n", WIFSIGNALED(status) ? WTERMSIG(status) : -1);
}

static void signal_descriptors(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, SIGCHLD);
    sigprocmask(SIG_BLOCK, &set, NULL);
    int signals = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    struct signalfd_siginfo info[2];
    printf("none: %zd", read(signals, info, sizeof info));
    printf(" %d\n", errno == EAGAIN);
    struct pollfd entry = {signals, POLLIN, 0};
    raise(SIGUSR1);
    printf("poll: %d\n", poll(&entry, 1, 1000));
    printf("read: %zd", read(signals, info, sizeof info));
    printf(" signal %u of itself %d\n", info[0].ssi_signo, info[0].ssi_pid == (uint32_t)getpid());
    pid_t child = fork();
    if (child == 0) _exit(7);
    printf("poll: %d\n", poll(&entry, 1, 5000));
    printf("read: %zd", read(signals, info, sizeof info));
    printf(" signal %u of the child %d, status %d, code %d\n", info[0].ssi_signo, info[0].ssi_pid == (uint32_t)child,
           info[0].ssi_status, info[0].ssi_code);
    waitpid(child, NULL, 0);
    sigdelset(&set, SIGUSR1);
    printf("changed: %d\n", signalfd(signals, &set, 0) == signals);
    raise(SIGUSR1);
    printf("poll: %d\n", poll(&entry, 1, 0));
    printf("errors: %d", signalfd(0, &set, 0));
    printf(" %d", signalfd(-1, &set, 1));
    printf(" %zd\n", read(signals, info, 10));
}

int main(void) {
    setvbuf(stdout, NULL, _IONBF, 0);
    clocks();
    descriptors();
    signals();
    threads();
    intervals();
    signal_descriptors();
    return 0;
}
