// Files, memory and readiness: opens, maps, renames, pipes, poll, epoll, sparse files, errors.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define SHOW(call) do { long result = (call); printf("%s = %ld%s%s\n", #call, result < 0 ? -1 : result, \
    result < 0 ? " " : "", result < 0 ? strerrorname_np(errno) : ""); } while (0)

int main(void) {
    char buffer[64] = {0};
    char directory[] = "/tmp/isola-XXXXXX";
    if (mkdtemp(directory) == NULL || chdir(directory) != 0) return 1;
    int file = open("file", O_RDWR | O_CREAT | O_EXCL, 0640);
    SHOW(write(file, "hello world", 11));
    SHOW(pread(file, buffer, 5, 6));
    printf("%s\n", buffer);
    SHOW(lseek(file, 100000, SEEK_SET));
    SHOW(write(file, "end", 3));
    struct stat facts;
    fstat(file, &facts);
    printf("size %ld mode %o links %ld\n", (long)facts.st_size, facts.st_mode, (long)facts.st_nlink);
    SHOW(open("file", O_CREAT | O_EXCL, 0600));
    SHOW(open("none", O_RDONLY));
    SHOW(mkdir("folder", 0755));
    SHOW(rename("file", "folder/renamed"));
    SHOW(rmdir("folder"));
    SHOW(symlink("folder/renamed", "link"));
    SHOW(readlink("link", buffer, sizeof buffer));
    SHOW(access("link", R_OK | W_OK));
    SHOW(unlink("folder"));
    char *map = mmap(NULL, 100003, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    memcpy(map, "HELLO", 5);
    SHOW(pread(file, buffer, 11, 0));
    printf("%.11s\n", buffer);
    char *copy = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    copy[0] = 'J';
    printf("%c %c\n", copy[0], map[0]);
    int *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (fork() == 0) {
        *shared = 77;
        _exit(0);
    }
    wait(NULL);
    printf("shared %d\n", *shared);
    SHOW(munmap(map, 100003));
    SHOW(mprotect(copy, 4096, PROT_READ));
    char *large = mmap(NULL, 1L << 40, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    printf("reserved %d\n", large != MAP_FAILED);
    int ends[2];
    SHOW(pipe2(ends, O_NONBLOCK | O_CLOEXEC));
    SHOW(read(ends[0], buffer, 1));
    struct pollfd polled = {.fd = ends[0], .events = POLLIN};
    SHOW(poll(&polled, 1, 0));
    SHOW(write(ends[1], "piped", 5));
    SHOW(poll(&polled, 1, -1));
    int epoll = epoll_create1(0), counter = eventfd(0, 0);
    struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.u64 = 1}, found[4];
    SHOW(epoll_ctl(epoll, EPOLL_CTL_ADD, ends[0], &event));
    event.data.u64 = 2;
    SHOW(epoll_ctl(epoll, EPOLL_CTL_ADD, counter, &event));
    SHOW(epoll_wait(epoll, found, 4, 1000));
    SHOW(epoll_wait(epoll, found, 4, 0));
    unsigned long number = 3;
    SHOW(write(counter, &number, 8));
    SHOW(epoll_wait(epoll, found, 4, 1000));
    printf("from %ld\n", (long)found[0].data.u64);
    close(ends[1]);
    SHOW(read(ends[0], buffer, 64));
    SHOW(read(ends[0], buffer, 64));
    DIR *listed = opendir(".");
    int entries = 0;
    while (readdir(listed) != NULL) entries++;
    printf("entries %d\n", entries);
    SHOW(ftruncate(file, 5));
    SHOW(lseek(file, 0, SEEK_END));
    return 0;
}
