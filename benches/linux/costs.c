/*
 * Measures what the system calls of a program cost: the same program in the Linux guest, and in a cell with the image
 * `linux`. The clocks of the machines advance by 1 ns for each instruction, so the times are instructions.
 *
 * Prints `cost NAME PICOSECONDS` for each figure, per operation, and `costs: done`.
 */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { CALLS = 10000, PAGES = 4096, TRIPS = 2000, FORKS = 200, THREADS = 500 };

static const char *self;

static uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static void check(int is_true, const char *what)
{
    if (!is_true) {
        perror(what);
        exit(1);
    }
}

static void calls(unsigned count)
{
    for (unsigned call = 0; call < count; call++)
        syscall(SYS_getppid);
}

/* As a call without work, but one that no kernel answers in its entry code. */
static void served_calls(unsigned count)
{
    for (unsigned call = 0; call < count; call++)
        syscall(SYS_getpgrp);
}

/* The memory that `faults` has mapped: its end is not counted, but a fork would copy it. */
static struct { char *memory; size_t len; } touched[2];
static int touched_count;

static void faults(unsigned count)
{
    size_t len = (size_t)count * 4096;
    char *memory = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(memory != MAP_FAILED, "mmap");
    touched[touched_count].memory = memory;
    touched[touched_count++].len = len;
    madvise(memory, len, MADV_NOHUGEPAGE);
    for (unsigned page = 0; page < count; page++)
        ((volatile char *)memory)[(size_t)page * 4096] = 1;
}

/* Two threads pass a word to each other: it is the number of turns, and the one whose turn it is not waits. */
static uint32_t turn;
static unsigned turns;

static void pass(uint32_t parity)
{
    for (unsigned done = 0; done < turns; done++) {
        uint32_t seen;
        while ((seen = __atomic_load_n(&turn, __ATOMIC_SEQ_CST)) % 2 != parity)
            syscall(SYS_futex, &turn, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
        __atomic_store_n(&turn, seen + 1, __ATOMIC_SEQ_CST);
        syscall(SYS_futex, &turn, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    }
}

static void *second(void *unused)
{
    (void)unused;
    pass(1);
    return NULL;
}

static void futexes(unsigned count)
{
    pthread_t thread;
    turns = count;
    check(pthread_create(&thread, NULL, second, NULL) == 0, "pthread_create");
    pass(0);
    pthread_join(thread, NULL);
}

/* A message to another process over two descriptors, and back over two others. */
static void trips(unsigned count, size_t len, const int *there, const int *back)
{
    char message[64] = { 0 };
    ssize_t all = (ssize_t)len;
    pid_t child = fork();
    check(child >= 0, "fork");
    for (unsigned trip = 0; trip < count; trip++) {
        int done = child == 0 ? read(there[0], message, len) == all && write(back[1], message, len) == all
                              : write(there[1], message, len) == all && read(back[0], message, len) == all;
        check(done, "read and write");
    }
    if (child == 0)
        _exit(0);
    waitpid(child, NULL, 0);
    for (int end = 0; end < 2; end++) {
        close(there[end]);
        close(back[end]);
    }
}

static void pipe_trips(unsigned count, size_t len)
{
    int there[2], back[2];
    check(pipe(there) == 0 && pipe(back) == 0, "pipe");
    trips(count, len, there, back);
}

static void pipes(unsigned count)
{
    pipe_trips(count, 1);
}

static void long_pipes(unsigned count)
{
    pipe_trips(count, 64);
}

static void sockets(unsigned count)
{
    int ends[2];
    check(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "socketpair");
    int there[2] = { ends[1], ends[0] }, back[2] = { dup(ends[0]), dup(ends[1]) };
    check(back[0] >= 0 && back[1] >= 0, "dup");
    trips(count, 64, there, back);
}

static void forks(unsigned count)
{
    for (unsigned fork_count = 0; fork_count < count; fork_count++) {
        pid_t child = fork();
        if (child == 0)
            _exit(0);
        check(waitpid(child, NULL, 0) == child, "waitpid");
    }
}

static void execs(unsigned count)
{
    for (unsigned exec_count = 0; exec_count < count; exec_count++) {
        pid_t child = fork();
        if (child == 0) {
            execl(self, self, "exit", (char *)NULL);
            _exit(1);
        }
        int status = 1;
        check(waitpid(child, &status, 0) == child && status == 0, "execl");
    }
}

static void *nothing(void *unused)
{
    return unused;
}

static void threads(unsigned count)
{
    for (unsigned thread_count = 0; thread_count < count; thread_count++) {
        pthread_t thread;
        check(pthread_create(&thread, NULL, nothing, NULL) == 0, "pthread_create");
        pthread_join(thread, NULL);
    }
}

/* The first, short run fills caches and creates what is created once. */
static void measure(const char *name, void (*run)(unsigned), unsigned count)
{
    run(count / 20 + 1);
    uint64_t start = now();
    run(count);
    printf("cost %s %llu\n", name, (unsigned long long)(now() - start) * 1000 / count);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "exit") == 0)
        return 0;
    self = argv[0];
    /* The peers of the group `link`. */
    if (argc > 1 && strcmp(argv[1], "link") == 0) {
        measure("pipe-64", long_pipes, TRIPS);
        measure("socket-64", sockets, TRIPS);
        printf("costs: done\n");
        return 0;
    }
    measure("call", calls, CALLS);
    measure("call-served", served_calls, CALLS);
    measure("fault", faults, PAGES);
    while (touched_count-- > 0)
        munmap(touched[touched_count].memory, touched[touched_count].len);
    measure("futex", futexes, TRIPS);
    measure("pipe", pipes, TRIPS);
    measure("fork", forks, FORKS);
    measure("exec", execs, FORKS);
    measure("thread", threads, THREADS);
    printf("costs: done\n");
    return 0;
}
