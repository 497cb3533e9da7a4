// io_uring by raw system calls, and Linux AIO. Completions are printed in the order of their user data.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define SHOW(call) do { long result = (call); printf("%s = %ld%s%s\n", #call, result < 0 ? -1 : result, \
    result < 0 ? " " : "", result < 0 ? strerrorname_np(errno) : ""); } while (0)

static int ring;
static unsigned *tail, *completion_head, *completion_tail, *mask, *completion_mask, *array;
static struct io_uring_sqe *entries;
static struct io_uring_cqe *completions;

static int set_up(void) {
    struct io_uring_params parameters = {0};
    ring = syscall(SYS_io_uring_setup, 8, &parameters);
    if (ring < 0) return 0;
    printf("entries %u %u\n", parameters.sq_entries, parameters.cq_entries);
    size_t len = parameters.sq_off.array + parameters.sq_entries * 4;
    char *words = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_SQ_RING);
    entries = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_SQES);
    tail = (void *)(words + parameters.sq_off.tail);
    mask = (void *)(words + parameters.sq_off.ring_mask);
    array = (void *)(words + parameters.sq_off.array);
    completion_head = (void *)(words + parameters.cq_off.head);
    completion_tail = (void *)(words + parameters.cq_off.tail);
    completion_mask = (void *)(words + parameters.cq_off.ring_mask);
    completions = (void *)(words + parameters.cq_off.cqes);
    return 1;
}

static struct io_uring_sqe *entry(int operation, int file, const void *address, unsigned len, unsigned long offset) {
    unsigned index = *tail & *mask;
    struct io_uring_sqe *new = &entries[index];
    memset(new, 0, sizeof *new);
    *new = (struct io_uring_sqe){.opcode = operation, .fd = file, .addr = (unsigned long)address, .len = len, .off = offset};
    array[index] = index;
    static unsigned long next;
    new->user_data = ++next;
    __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
    return new;
}

static long enter(unsigned count, unsigned least) {
    return syscall(SYS_io_uring_enter, ring, count, least, IORING_ENTER_GETEVENTS, NULL, 0);
}

static int by_data(const void *one, const void *other) {
    const struct io_uring_cqe *first = one, *second = other;
    return (first->user_data > second->user_data) - (first->user_data < second->user_data);
}

static void show_completions(void) {
    struct io_uring_cqe taken[16];
    unsigned head = *completion_head, count = 0;
    while (head != __atomic_load_n(completion_tail, __ATOMIC_ACQUIRE))
        taken[count++] = completions[head++ & *completion_mask];
    __atomic_store_n(completion_head, head, __ATOMIC_RELEASE);
    qsort(taken, count, sizeof *taken, by_data);
    for (unsigned index = 0; index < count; index++) {
        int result = taken[index].res;
        printf("  %llu: %d%s%s\n", (unsigned long long)taken[index].user_data, result < 0 ? -1 : result,
            result < 0 ? " " : "", result < 0 ? strerrorname_np(-result) : "");
    }
}

static void operations(void) {
    static char buffer[64];
    entry(IORING_OP_NOP, -1, NULL, 0, 0);
    entry(IORING_OP_MKDIRAT, AT_FDCWD, "folder", 0700, 0);
    SHOW(enter(2, 2));
    show_completions();
    entry(IORING_OP_OPENAT, AT_FDCWD, "folder/file", 0600, 0)->open_flags = O_RDWR | O_CREAT;
    SHOW(enter(1, 1));
    int file = completions[*completion_head & *completion_mask].res;
    (*completion_head)++;
    entry(IORING_OP_WRITE, file, "hello world", 11, 0)->flags = IOSQE_IO_LINK;
    entry(IORING_OP_FSYNC, file, NULL, 0, 0)->flags = IOSQE_IO_LINK;
    entry(IORING_OP_READ, file, buffer, 5, 6);
    entry(IORING_OP_READ, 99, buffer, 5, 6);
    SHOW(enter(4, 4));
    show_completions();
    printf("%s\n", buffer);
    entry(IORING_OP_READ, file, buffer, 20, 0)->flags = IOSQE_IO_LINK;
    entry(IORING_OP_NOP, -1, NULL, 0, 0)->flags = IOSQE_IO_HARDLINK;
    entry(IORING_OP_NOP, -1, NULL, 0, 0);
    SHOW(enter(3, 3));
    show_completions();
    entry(IORING_OP_UNLINKAT, AT_FDCWD, "folder/file", 0, 0);
    entry(IORING_OP_CLOSE, file, NULL, 0, 0);
    SHOW(enter(2, 2));
    show_completions();
}

static void waits(void) {
    static char buffer[64];
    int ends[2];
    SHOW(pipe(ends));
    entry(IORING_OP_READ, ends[0], buffer, 8, 0);
    struct io_uring_sqe *poll_entry = entry(IORING_OP_POLL_ADD, ends[0], NULL, 0, 0);
    poll_entry->poll32_events = POLLIN;
    SHOW(enter(2, 0));
    show_completions();
    if (fork() == 0) _exit(write(ends[1], "from a child", 12) != 12);
    SHOW(enter(0, 2));
    wait(NULL);
    show_completions();
    printf("%.8s\n", buffer);
    SHOW(read(ends[0], buffer, 4));
    struct io_uring_sqe *canceled = entry(IORING_OP_READ, ends[0], buffer, 8, 0);
    unsigned long key = canceled->user_data;
    SHOW(enter(1, 0));
    entry(IORING_OP_ASYNC_CANCEL, -1, (void *)key, 0, 0);
    entry(IORING_OP_ASYNC_CANCEL, -1, (void *)9999, 0, 0);
    SHOW(enter(2, 3));
    show_completions();
    static struct __kernel_timespec time = {.tv_nsec = 1000000};
    entry(IORING_OP_TIMEOUT, -1, &time, 1, 0);
    SHOW(enter(1, 1));
    show_completions();
    entry(IORING_OP_READ, ends[0], buffer, 8, 0)->flags = IOSQE_IO_LINK;
    entry(IORING_OP_LINK_TIMEOUT, -1, &time, 1, 0);
    SHOW(enter(2, 2));
    show_completions();
    entry(IORING_OP_READ, ends[0], buffer, 4, 0);
    entry(IORING_OP_NOP, -1, NULL, 0, 0)->flags = IOSQE_IO_DRAIN;
    entry(IORING_OP_NOP, -1, NULL, 0, 0);
    SHOW(enter(3, 0));
    show_completions();
    SHOW(write(ends[1], "four", 4));
    SHOW(enter(0, 3));
    show_completions();
}

static void registrations(void) {
    static char buffer[64];
    int file = open("registered", O_RDWR | O_CREAT, 0600);
    SHOW(write(file, "registered bytes", 16));
    SHOW(syscall(SYS_io_uring_register, ring, IORING_REGISTER_FILES, &file, 1));
    SHOW(syscall(SYS_io_uring_register, ring, IORING_REGISTER_FILES, &file, 1));
    struct { void *address; size_t len; } part = {buffer, sizeof buffer};
    SHOW(syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, &part, 1));
    SHOW(close(file));
    entry(IORING_OP_READ_FIXED, 0, buffer + 1, 10, 0)->flags = IOSQE_FIXED_FILE;
    entry(IORING_OP_READ_FIXED, 0, buffer + 60, 10, 0)->flags = IOSQE_FIXED_FILE;
    entry(IORING_OP_READ_FIXED, 1, buffer, 10, 0)->flags = IOSQE_FIXED_FILE;
    SHOW(enter(3, 3));
    show_completions();
    printf("%s\n", buffer + 1);
    SHOW(syscall(SYS_io_uring_register, ring, IORING_UNREGISTER_FILES, NULL, 0));
    SHOW(syscall(SYS_io_uring_register, ring, IORING_UNREGISTER_FILES, NULL, 0));
}

static void aio(void) {
    static char buffer[64];
    aio_context_t context = 0;
    struct io_event events[4];
    SHOW(syscall(SYS_io_setup, 4, &context));
    int file = open("registered", O_RDWR);
    struct iocb read_request = {.aio_data = 7, .aio_lio_opcode = IOCB_CMD_PREAD, .aio_fildes = file,
        .aio_buf = (unsigned long)buffer, .aio_nbytes = 10, .aio_offset = 11};
    struct iocb wrong = {.aio_lio_opcode = IOCB_CMD_PREAD, .aio_fildes = 99};
    struct iocb *list[] = {&read_request, &wrong};
    SHOW(syscall(SYS_io_submit, context, 2, list));
    SHOW(syscall(SYS_io_submit, context, 1, list + 1));
    SHOW(syscall(SYS_io_getevents, context, 1, 4, events, NULL));
    printf("data %llu result %lld %s\n", (unsigned long long)events[0].data, (long long)events[0].res, buffer);
    SHOW(syscall(SYS_io_destroy, context));
    SHOW(syscall(SYS_io_destroy, context));
}

int main(void) {
    char directory[] = "/tmp/isola-XXXXXX";
    if (mkdtemp(directory) == NULL || chdir(directory) != 0) return 1;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!set_up()) {
        printf("no io_uring\n");
        return 3;
    }
    operations();
    waits();
    registrations();
    aio();
    return 0;
}
