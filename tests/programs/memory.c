// Changes of a program's memory while other threads use it: mmap, munmap, madvise and mprotect.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096L
#define PAGES 48L
// A table of the lowest level maps this much: without its pages, the table leaves the page tables.
#define TABLE (2L << 20)
#define ROUNDS 50
#define OWN 0x0badcafe00000000L

static volatile long *shared;
static atomic_int ends;

static void fail(const char *step, long round) {
    printf("%s: wrong in round %ld\n", step, round);
    fflush(stdout);
    _exit(1);
}

static void check(volatile long *memory, long expected, const char *step, long round) {
    for (long page = 0; page < PAGES; page++)
        if (memory[page * PAGE / 8] != expected || memory[page * PAGE / 8 + 511] != expected) fail(step, round);
}

static void fill(volatile long *memory, long value) {
    for (long page = 0; page < PAGES; page++)
        memory[page * PAGE / 8] = memory[page * PAGE / 8 + 511] = value;
}

// Reads pages that another thread drops and writes again: they have zeros or that thread's words.
static void *watch(void *unused) {
    for (long round = 0; !ends; round++)
        for (long page = 0; page < PAGES; page++)
            for (long word = 0; word < 512; word += 73) {
                long seen = shared[page * PAGE / 8 + word];
                if (seen != 0 && (seen & ~0xffffffffL) != OWN) fail("watch", round);
            }
    return unused;
}

// Uses memory of the kernel: what a program has freed gets other contents.
static void *churn(void *unused) {
    char bytes[PAGE];
    for (long at = 0; at < PAGE; at++) bytes[at] = 0x55;
    while (!ends) {
        int ends_of_pipe[2];
        if (pipe(ends_of_pipe) != 0) fail("pipe", 0);
        for (int round = 0; round < 8; round++)
            if (write(ends_of_pipe[1], bytes, PAGE) != PAGE) fail("write", round);
        close(ends_of_pipe[0]);
        close(ends_of_pipe[1]);
    }
    return unused;
}

static void change(long round) {
    // Alone in its table, so that the table goes with it. The area begins below it: another thread's area must not get the
    // place of what is unmapped in between.
    char *area = mmap(NULL, 3 * TABLE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (area == MAP_FAILED) fail("mmap", round);
    long *memory = (long *)(((long)area + TABLE) / TABLE * TABLE);
    if (mprotect(memory, PAGES * PAGE, PROT_READ | PROT_WRITE) != 0) fail("mprotect", round);
    check(memory, 0, "new memory", round);
    fill(memory, round + 1);
    if (mprotect(memory, PAGES * PAGE, PROT_NONE) != 0) fail("mprotect to none", round);
    if (mprotect(memory, PAGES * PAGE, PROT_READ) != 0) fail("mprotect to read", round);
    check(memory, round + 1, "memory without access", round);
    if (madvise(memory, PAGES * PAGE, MADV_DONTNEED) != 0) fail("madvise", round);
    check(memory, 0, "dropped memory", round);
    if (munmap(memory, PAGES * PAGE) != 0) fail("munmap", round);
    if (mmap(memory, PAGES * PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != memory)
        fail("mmap again", round);
    check(memory, 0, "memory again", round);
    if (munmap(area, 3 * TABLE) != 0) fail("munmap of all", round);
}

static void *change_own(void *unused) {
    for (long round = 0; round < ROUNDS; round++) change(round);
    return unused;
}

int main(void) {
    pthread_t watcher, churner, changer;
    // Alone: nothing but a page fault interrupts the program.
    for (long round = 0; round < ROUNDS; round++) change(round);
    shared = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pthread_create(&watcher, NULL, watch, NULL);
    pthread_create(&churner, NULL, churn, NULL);
    pthread_create(&changer, NULL, change_own, NULL);
    for (long round = 0; round < ROUNDS; round++) {
        fill(shared, OWN + round);
        if (madvise((void *)shared, PAGES * PAGE, MADV_DONTNEED) != 0) fail("madvise of shared", round);
        check(shared, 0, "dropped shared memory", round);
        change(round);
    }
    pthread_join(changer, NULL);
    ends = 1;
    pthread_join(watcher, NULL);
    pthread_join(churner, NULL);
    printf("memory: %d rounds\n", ROUNDS);
    return 0;
}
