// Events of files, transfers between files and pipes, seals, locks of open files, sparse files.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define SHOW(call) do { long result = (call); printf("%s = %ld%s%s\n", #call, result < 0 ? -1 : result, \
    result < 0 ? " " : "", result < 0 ? strerrorname_np(errno) : ""); } while (0)

static void show_events(int instance) {
    char buffer[4096] __attribute__((aligned(8)));
    ssize_t len = read(instance, buffer, sizeof buffer);
    unsigned cookie = 0;
    for (ssize_t at = 0; at < len;) {
        struct inotify_event *event = (void *)(buffer + at);
        if (event->mask & IN_MOVED_FROM) cookie = event->cookie;
        printf("  %d %#x%s %s\n", event->wd, event->mask,
            event->cookie == 0 ? "" : event->cookie == cookie ? " cookie" : " other", event->len ? event->name : "-");
        at += sizeof *event + event->len;
    }
}

static void watches(void) {
    int instance = inotify_init1(IN_NONBLOCK);
    SHOW(inotify_add_watch(instance, "none", IN_OPEN));
    SHOW(inotify_add_watch(instance, ".", IN_ALL_EVENTS));
    int file = open("file", O_RDWR | O_CREAT, 0600);
    SHOW(inotify_add_watch(instance, "file", IN_ALL_EVENTS));
    SHOW(write(file, "hello world", 11));
    SHOW(ftruncate(file, 5));
    SHOW(fchmod(file, 0640));
    show_events(instance);
    SHOW(mkdir("folder", 0700));
    SHOW(rename("file", "folder/renamed"));
    SHOW(unlink("folder/renamed"));
    show_events(instance);
    SHOW(close(file));
    SHOW(rmdir("folder"));
    show_events(instance);
    if (fork() == 0) _exit(close(creat("of-child", 0600)));
    struct pollfd wait_for = {.fd = instance, .events = POLLIN};
    SHOW(poll(&wait_for, 1, 10000));
    wait(NULL);
    show_events(instance);
    SHOW(inotify_rm_watch(instance, 1));
    show_events(instance);
    SHOW(inotify_rm_watch(instance, 1));
    close(instance);
}

static void transfers(void) {
    char buffer[64] = {0};
    int ends[2], others[2], file = open("bytes", O_RDWR | O_CREAT, 0600);
    SHOW(pipe2(ends, O_NONBLOCK));
    SHOW(pipe2(others, O_NONBLOCK));
    SHOW(pwrite(file, "0123456789", 10, 4092));
    loff_t offset = 4094;
    SHOW(splice(file, &offset, ends[1], NULL, 100, 0));
    printf("offset %ld\n", (long)offset);
    SHOW(tee(ends[0], others[1], 4, 0));
    SHOW(read(ends[0], buffer, 3));
    SHOW(splice(ends[0], NULL, file, NULL, 2, 0));
    SHOW(splice(ends[0], NULL, others[1], NULL, 100, 0));
    SHOW(splice(ends[0], NULL, file, NULL, 1, 0));
    memset(buffer, 0, sizeof buffer);
    SHOW(read(others[0], buffer, sizeof buffer));
    printf("%s\n", buffer);
    SHOW(splice(file, NULL, file, NULL, 1, 0));
    struct iovec part = {"memory", 6};
    SHOW(vmsplice(ends[1], &part, 1, 0));
    off_t position = 4092;
    SHOW(sendfile(ends[1], file, &position, 4));
    memset(buffer, 0, sizeof buffer);
    SHOW(read(ends[0], buffer, sizeof buffer));
    printf("%s\n", buffer);
    loff_t from = 0, to = 8192;
    SHOW(copy_file_range(file, &from, file, &to, 5000, 0));
    SHOW(copy_file_range(file, NULL, file, NULL, 100, 1));
    SHOW(lseek(file, 0, SEEK_END));
    struct iovec into = {buffer, 4};
    int empty[2];
    SHOW(pipe(empty));
    SHOW(preadv2(empty[0], &into, 1, -1, RWF_NOWAIT));
    SHOW(pwritev2(file, &into, 1, 0, RWF_APPEND));
    SHOW(lseek(file, 0, SEEK_END));
    for (int pipe_end = 0; pipe_end < 2; pipe_end++) close(ends[pipe_end]), close(others[pipe_end]);
    close(empty[0]), close(empty[1]);
    close(file);
}

static void seals(void) {
    int file = memfd_create("sealed", MFD_ALLOW_SEALING);
    SHOW(ftruncate(file, 8192));
    char *map = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    strcpy(map, "mapped");
    SHOW(fcntl(file, F_ADD_SEALS, F_SEAL_WRITE));
    SHOW(fcntl(file, F_ADD_SEALS, F_SEAL_GROW));
    SHOW(fcntl(file, F_GET_SEALS));
    SHOW(ftruncate(file, 8193));
    if (fork() == 0) {
        if (ftruncate(file, 4096) == 0) map[4096] = 1;
        _exit(0);
    }
    int status;
    wait(&status);
    printf("signal %d\n", WIFSIGNALED(status) ? WTERMSIG(status) : 0);
    SHOW(munmap(map, 8192));
    SHOW(fcntl(file, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SEAL));
    SHOW(pwrite(file, "x", 1, 0));
    SHOW(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) == MAP_FAILED ? -1 : 0);
    SHOW(fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK));
    SHOW(pread(file, (char[8]){0}, 7, 0));
    close(file);
}

static void locks(void) {
    int first = open("locked", O_RDWR | O_CREAT, 0600), second = open("locked", O_RDWR);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 10, .l_len = 5};
    SHOW(fcntl(first, F_OFD_SETLK, &lock));
    SHOW(fcntl(second, F_OFD_SETLK, &lock));
    SHOW(fcntl(second, F_SETLK, &lock));
    SHOW(fcntl(second, F_OFD_GETLK, &lock));
    printf("type %d start %ld len %ld pid %d\n", lock.l_type, (long)lock.l_start, (long)lock.l_len, lock.l_pid);
    SHOW(close(first));
    lock = (struct flock){.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = 10, .l_len = 5};
    SHOW(fcntl(second, F_OFD_SETLKW, &lock));
    lock.l_pid = 1;
    SHOW(fcntl(second, F_OFD_SETLK, &lock));
    close(second);
}

static void holes(void) {
    int file = open("sparse", O_RDWR | O_CREAT, 0600);
    SHOW(pwrite(file, "x", 1, 1 << 20));
    SHOW(lseek(file, 0, SEEK_DATA));
    SHOW(lseek(file, 1 << 20, SEEK_HOLE));
    SHOW(fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 1 << 20, 4096));
    SHOW(lseek(file, 0, SEEK_DATA));
    SHOW(fallocate(file, FALLOC_FL_PUNCH_HOLE, 0, 4096));
    SHOW(posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED));
    SHOW(posix_fadvise(file, 0, 0, 77));
    int unnamed = open(".", O_TMPFILE | O_RDWR, 0600);
    SHOW(write(unnamed, "named later", 11));
    char path[32];
    snprintf(path, sizeof path, "/proc/self/fd/%d", unnamed);
    SHOW(linkat(AT_FDCWD, path, AT_FDCWD, "named", AT_SYMLINK_FOLLOW));
    SHOW(access("named", R_OK));
    SHOW(renameat2(AT_FDCWD, "named", AT_FDCWD, "sparse", RENAME_NOREPLACE));
    SHOW(renameat2(AT_FDCWD, "named", AT_FDCWD, "sparse", RENAME_EXCHANGE));
    struct statx facts;
    SHOW(statx(AT_FDCWD, "sparse", 0, STATX_BASIC_STATS | STATX_BTIME, &facts));
    printf("size %llu links %u\n", (unsigned long long)facts.stx_size, facts.stx_nlink);
}

int main(void) {
    char directory[] = "/tmp/isola-XXXXXX";
    if (mkdtemp(directory) == NULL || chdir(directory) != 0) return 1;
    setvbuf(stdout, NULL, _IOLBF, 0);
    watches();
    transfers();
    seals();
    locks();
    holes();
    return 0;
}
