// Services of other cells by unix sockets: `services client ECHO ABSENT REFUSED NOWHERE`, paths of a service that answers
// each message with itself, of one that does not exist, of a cell that does not accept this one, and of no cell;
// `services wait PATH`, which waits for bytes of a service that sends none until it ends;
// `services serve STREAM MESSAGES`, paths of such services, of which each serves one connection.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition) do { if (!(condition)) { \
    printf("line %d: %s (%s)\n", __LINE__, #condition, strerrorname_np(errno)); exit(1); } } while (0)

static unsigned char bytes[200000], answer[200000];

static struct sockaddr_un address_of(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path, path, sizeof address.sun_path - 1);
    return address;
}

static int connect_to(int kind, const char *path) {
    struct sockaddr_un address = address_of(path);
    int end = socket(AF_UNIX, kind, 0);
    if (connect(end, (struct sockaddr *)&address, sizeof address) == 0) return end;
    int error = errno;
    close(end);
    errno = error;
    return -1;
}

// Sends and receives a long stream at once, by epoll.
static void stream(const char *path) {
    int end = connect_to(SOCK_STREAM | SOCK_NONBLOCK, path);
    if (end < 0) {
        struct sockaddr_un address = address_of(path);
        end = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
        CHECK(connect(end, (struct sockaddr *)&address, sizeof address) < 0 && errno == EINPROGRESS);
        struct pollfd entry = {.fd = end, .events = POLLOUT};
        CHECK(poll(&entry, 1, -1) == 1 && entry.revents == POLLOUT);
        int error = -1;
        socklen_t len = sizeof error;
        CHECK(getsockopt(end, SOL_SOCKET, SO_ERROR, &error, &len) == 0 && error == 0);
    }
    int set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT};
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, end, &event) == 0);
    size_t sent = 0, received = 0;
    while (received < sizeof bytes) {
        CHECK(epoll_wait(set, &event, 1, -1) == 1);
        if (event.events & EPOLLOUT && sent < sizeof bytes) {
            ssize_t count = send(end, bytes + sent, sizeof bytes - sent, 0);
            CHECK(count > 0 || errno == EAGAIN);
            if (count > 0) sent += count;
            if (sent == sizeof bytes) {
                event.events = EPOLLIN;
                CHECK(epoll_ctl(set, EPOLL_CTL_MOD, end, &event) == 0);
            }
        } else if (event.events & EPOLLIN) {
            ssize_t count = recv(end, answer + received, sizeof answer - received, 0);
            CHECK(count > 0);
            received += count;
        }
    }
    CHECK(memcmp(bytes, answer, sizeof bytes) == 0);
    CHECK(shutdown(end, SHUT_WR) == 0);
    CHECK(fcntl(end, F_SETFL, 0) == 0 && recv(end, answer, 1, 0) == 0);
    close(end);
    close(set);
}

static void messages(const char *path) {
    int end = connect_to(SOCK_SEQPACKET, path);
    CHECK(end >= 0);
    for (size_t len = 1; len <= 8000; len += len < 70 ? 1 : 811) {
        CHECK(send(end, bytes, len, 0) == (ssize_t)len);
        CHECK(recv(end, answer, sizeof answer, 0) == (ssize_t)len && memcmp(bytes, answer, len) == 0);
    }
    CHECK(send(end, bytes, 8185, 0) < 0 && errno == EMSGSIZE);
    struct ucred peer;
    socklen_t len = sizeof peer;
    CHECK(getsockopt(end, SOL_SOCKET, SO_PEERCRED, &peer, &len) == 0);
    struct sockaddr_un name;
    socklen_t name_len = sizeof name;
    CHECK(getpeername(end, (struct sockaddr *)&name, &name_len) == 0 && strcmp(name.sun_path, path) == 0);
    printf("peer: process %d, user %u\n", peer.pid, peer.uid);
    close(end);
}

static int client(char **paths) {
    stream(paths[0]);
    messages(paths[0]);
    // More connections than a cell may have to another, one after the other.
    for (int round = 0; round < 20; round++) {
        int end = connect_to(SOCK_STREAM, paths[0]);
        CHECK(end >= 0 && write(end, "x", 1) == 1 && read(end, answer, 1) == 1);
        close(end);
    }
    for (int index = 1; index <= 3; index++) {
        CHECK(connect_to(SOCK_STREAM, paths[index]) < 0);
        printf("%s: %s\n", paths[index], strerrorname_np(errno));
    }
    struct stat state;
    CHECK(stat(paths[0], &state) == 0 && S_ISSOCK(state.st_mode));
    puts("services: the client is done");
    return 0;
}

static int wait_for_end(const char *path) {
    int end = connect_to(SOCK_STREAM, path);
    CHECK(end >= 0);
    puts("services: waiting");
    fflush(stdout);
    ssize_t count = recv(end, answer, 1, 0);
    printf("services: recv is %zd (%s)\n", count, strerrorname_np(errno));
    CHECK(recv(end, answer, 1, 0) == 0);
    CHECK(send(end, bytes, 1, MSG_NOSIGNAL) < 0 && errno == EPIPE);
    return 0;
}

static void serve(int kind, const char *path) {
    struct sockaddr_un address = address_of(path);
    int listener = socket(AF_UNIX, kind, 0);
    CHECK(bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(listener, 5) == 0);
    printf("services: serving %s\n", path);
    fflush(stdout);
    int end = accept(listener, NULL, NULL);
    CHECK(end >= 0);
    ssize_t count;
    while ((count = recv(end, answer, sizeof answer, 0)) > 0) CHECK(send(end, answer, count, 0) == count);
    CHECK(count == 0);
    exit(0);
}

int main(int count, char **arguments) {
    for (size_t index = 0; index < sizeof bytes; index++) bytes[index] = index * 7 + index / 251;
    if (count == 6 && strcmp(arguments[1], "client") == 0) return client(arguments + 2);
    if (count == 3 && strcmp(arguments[1], "wait") == 0) return wait_for_end(arguments[2]);
    CHECK(count == 4 && strcmp(arguments[1], "serve") == 0);
    for (int index = 0; index < 2; index++)
        if (fork() == 0) serve(index == 0 ? SOCK_STREAM : SOCK_SEQPACKET, arguments[2 + index]);
    int status, failed = 0;
    while (wait(&status) > 0) failed |= status;
    puts(failed ? "services: failed" : "services: the server is done");
    return failed != 0;
}
