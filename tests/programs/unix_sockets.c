// Unix sockets and netlink: streams, messages, names, passed files and credentials, time limits, signals, hostile arguments.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SHOW(call) do { long result = (call); printf("%s = %ld%s%s\n", #call, result < 0 ? -1 : result, \
    result < 0 ? " " : "", result < 0 ? strerrorname_np(errno) : ""); } while (0)

static char buffer[65536];
static int pipe_signals;

static void on_pipe(int number) {
    (void)number;
    pipe_signals++;
}

static void on_alarm(int number) {
    (void)number;
}

static int events(int socket) {
    struct pollfd entry = {.fd = socket, .events = POLLIN | POLLOUT | POLLPRI | POLLRDHUP};
    poll(&entry, 1, 0);
    return entry.revents;
}

static int option(int socket, int name) {
    int value = -1;
    socklen_t len = sizeof value;
    if (getsockopt(socket, SOL_SOCKET, name, &value, &len) != 0) return -errno;
    return value;
}

static int set_option(int socket, int name, int value) {
    return setsockopt(socket, SOL_SOCKET, name, &value, sizeof value);
}

// Returns the length of an address whose path is `name`; a name that begins with '@' is abstract.
static socklen_t name_address(struct sockaddr_un *address, const char *name) {
    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    strcpy(address->sun_path, name);
    if (name[0] != '@') return sizeof *address;
    address->sun_path[0] = 0;
    return offsetof(struct sockaddr_un, sun_path) + strlen(name);
}

static int bind_name(int socket, const char *name) {
    struct sockaddr_un address;
    socklen_t len = name_address(&address, name);
    return bind(socket, (struct sockaddr *)&address, len);
}

static int connect_name(int socket, const char *name) {
    struct sockaddr_un address;
    socklen_t len = name_address(&address, name);
    return connect(socket, (struct sockaddr *)&address, len);
}

static void show_name(const char *title, int result, struct sockaddr_un *address, socklen_t len) {
    if (result != 0) {
        printf("%s: %s\n", title, strerrorname_np(errno));
        return;
    }
    size_t rest = len > 2 ? len - 2 : 0;
    printf("%s: length %u, %s%.*s\n", title, (unsigned)len, rest > 0 && address->sun_path[0] == 0 ? "@" : "",
           rest > 0 ? (int)strnlen(address->sun_path + (address->sun_path[0] == 0), rest) : 0,
           address->sun_path + (address->sun_path[0] == 0));
}

static void show_names(int socket) {
    struct sockaddr_un address;
    socklen_t len = sizeof address;
    memset(&address, 0, sizeof address);
    int result = getsockname(socket, (struct sockaddr *)&address, &len);
    show_name("own", result, &address, len);
    len = sizeof address;
    memset(&address, 0, sizeof address);
    result = getpeername(socket, (struct sockaddr *)&address, &len);
    show_name("peer", result, &address, len);
}

static void creation(void) {
    puts("-- creation");
    int pair[2];
    SHOW(socket(AF_UNIX, SOCK_STREAM | 0x100, 0));
    SHOW(socket(AF_UNIX, 9, 0));
    SHOW(socket(AF_UNIX, 77, 0));
    SHOW(socket(AF_UNIX, SOCK_STREAM, 5));
    SHOW(socket(1000, SOCK_STREAM, 0));
    SHOW(socketpair(AF_UNIX, SOCK_STREAM, 0, (int *)8));
    SHOW(socketpair(AF_NETLINK, SOCK_RAW, 0, pair));
    SHOW(close(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 1)));
    int one = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    printf("cloexec %d flags %o\n", fcntl(one, F_GETFD), fcntl(one, F_GETFL));
    printf("type %d domain %d protocol %d listens %d error %d\n", option(one, SO_TYPE), option(one, SO_DOMAIN),
           option(one, SO_PROTOCOL), option(one, SO_ACCEPTCONN), option(one, SO_ERROR));
    struct stat facts;
    fstat(one, &facts);
    printf("mode %o\n", facts.st_mode & S_IFMT);
    SHOW(lseek(one, 0, SEEK_SET));
    SHOW(ftruncate(one, 0));
    SHOW(listen(0, 1));
    SHOW(listen(99, 1));
    SHOW(listen(one, 1));
    SHOW(accept(one, NULL, NULL));
    SHOW(send(one, "x", 1, MSG_NOSIGNAL));
    SHOW(recv(one, buffer, 1, 0));
    SHOW(shutdown(one, 7));
    printf("events %x\n", events(one));
    close(one);
    one = socket(AF_UNIX, SOCK_STREAM, 0);
    SHOW(recv(one, buffer, 1, 0));
    SHOW(send(one, "x", 1, MSG_NOSIGNAL));
    printf("events %x\n", events(one));
    show_names(one);
    close(one);
    one = socket(AF_UNIX, SOCK_DGRAM, 0);
    SHOW(send(one, "x", 1, 0));
    SHOW(listen(one, 1));
    SHOW(accept(one, NULL, NULL));
    printf("events %x\n", events(one));
    close(one);
}

static void options(void) {
    puts("-- options");
    int one = socket(AF_UNIX, SOCK_STREAM, 0);
    printf("buffers %d %d\n", option(one, SO_SNDBUF), option(one, SO_RCVBUF));
    SHOW(set_option(one, SO_SNDBUF, 10000));
    SHOW(set_option(one, SO_RCVBUF, 1));
    printf("buffers %d %d\n", option(one, SO_SNDBUF), option(one, SO_RCVBUF));
    SHOW(set_option(one, SO_SNDBUF, 1));
    printf("shortest %d\n", option(one, SO_SNDBUF));
    SHOW(set_option(one, SO_TYPE, 1));
    SHOW(set_option(one, SO_ERROR, 1));
    SHOW(set_option(one, 250, 1));
    SHOW(setsockopt(one, SOL_SOCKET, SO_REUSEADDR, "xx", 2));
    SHOW(setsockopt(one, SOL_SOCKET, SO_REUSEADDR, (void *)8, 4));
    SHOW(setsockopt(one, SOL_SOCKET, SO_REUSEADDR, buffer, -1));
    for (int name = SO_REUSEADDR; name <= SO_BROADCAST; name += SO_BROADCAST - SO_REUSEADDR) {
        SHOW(set_option(one, name, 7));
        printf("value %d\n", option(one, name));
    }
    SHOW(set_option(one, SO_KEEPALIVE, 1));
    SHOW(set_option(one, SO_PASSCRED, 1));
    printf("keepalive %d passcred %d\n", option(one, SO_KEEPALIVE), option(one, SO_PASSCRED));
    struct linger linger = {1, 30};
    SHOW(setsockopt(one, SOL_SOCKET, SO_LINGER, &linger, 4));
    SHOW(setsockopt(one, SOL_SOCKET, SO_LINGER, &linger, sizeof linger));
    memset(&linger, 0, sizeof linger);
    socklen_t len = 3;
    SHOW(getsockopt(one, SOL_SOCKET, SO_LINGER, &linger, &len));
    printf("linger %d length %u\n", linger.l_onoff, (unsigned)len);
    struct timeval limit = {2, 500000};
    SHOW(setsockopt(one, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
    memset(&limit, 0, sizeof limit);
    len = sizeof limit;
    SHOW(getsockopt(one, SOL_SOCKET, SO_RCVTIMEO, &limit, &len));
    printf("limit %ld.%06ld\n", (long)limit.tv_sec, (long)limit.tv_usec);
    limit.tv_usec = 1000000;
    SHOW(setsockopt(one, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit));
    len = -1;
    SHOW(getsockopt(one, SOL_SOCKET, SO_TYPE, buffer, &len));
    SHOW(getsockopt(one, SOL_SOCKET, 251, buffer, &(socklen_t){4}));
    SHOW(getsockopt(one, IPPROTO_TCP, 1, buffer, &(socklen_t){4}));
    SHOW(setsockopt(one, IPPROTO_TCP, 1, buffer, 4));
    struct ucred peer;
    len = sizeof peer;
    SHOW(getsockopt(one, SOL_SOCKET, SO_PEERCRED, &peer, &len));
    printf("peer %d %d %d\n", peer.pid, (int)peer.uid, (int)peer.gid);
    close(one);
}

static void streams(void) {
    puts("-- streams");
    int pair[2], waiting = -1;
    SHOW(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    SHOW(write(pair[0], "hello ", 6));
    SHOW(send(pair[0], "world", 5, 0));
    printf("events %x\n", events(pair[1]));
    SHOW(ioctl(pair[1], FIONREAD, &waiting));
    printf("waiting %d\n", waiting);
    SHOW(recv(pair[1], buffer, 4, MSG_PEEK));
    SHOW(recv(pair[1], buffer, 100, MSG_PEEK));
    SHOW(recv(pair[1], buffer, 8, MSG_TRUNC));
    printf("%.8s\n", buffer);
    SHOW(read(pair[1], buffer, 100));
    SHOW(recv(pair[1], buffer, 1, MSG_DONTWAIT));
    SHOW(recv(pair[1], buffer, 0, MSG_DONTWAIT));
    SHOW(send(pair[0], "x", 1, MSG_OOB | MSG_DONTWAIT) < 2);
    while (recv(pair[1], buffer, sizeof buffer, MSG_DONTWAIT) > 0) {}
    SHOW(send(pair[0], (void *)8, 1, 0));
    SHOW(sendto(pair[0], "x", 1, 0, (struct sockaddr *)&(struct sockaddr_un){AF_UNIX, "x"}, 4));
    // The buffer becomes full, and empty again.
    fcntl(pair[0], F_SETFL, O_NONBLOCK);
    long total = 0, count;
    while ((count = write(pair[0], buffer, sizeof buffer)) > 0) total += count;
    printf("full: %s, more than 100000: %d\n", strerrorname_np(errno), total > 100000);
    printf("writable %d\n", (events(pair[0]) & POLLOUT) != 0);
    while ((count = recv(pair[1], buffer, sizeof buffer, MSG_DONTWAIT)) > 0) total -= count;
    printf("left %ld, writable %d\n", total, (events(pair[0]) & POLLOUT) != 0);
    fcntl(pair[0], F_SETFL, 0);
    // The end of one direction.
    SHOW(write(pair[0], "last", 4));
    SHOW(shutdown(pair[0], SHUT_WR));
    printf("events %x %x\n", events(pair[0]), events(pair[1]));
    SHOW(read(pair[1], buffer, 100));
    SHOW(read(pair[1], buffer, 100));
    SHOW(send(pair[0], "x", 1, MSG_NOSIGNAL));
    SHOW(write(pair[1], "back", 4));
    SHOW(shutdown(pair[1], SHUT_RDWR));
    printf("events %x %x\n", events(pair[0]), events(pair[1]));
    SHOW(read(pair[0], buffer, 100));
    signal(SIGPIPE, on_pipe);
    SHOW(write(pair[1], "x", 1));
    SHOW(send(pair[1], "x", 1, 0));
    SHOW(send(pair[1], "x", 1, MSG_NOSIGNAL));
    printf("signals %d\n", pipe_signals);
    close(pair[0]);
    SHOW(read(pair[1], buffer, 1));
    close(pair[1]);
    // A peer that closes with unread bytes resets the connection.
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    SHOW(write(pair[0], "lost", 4));
    close(pair[1]);
    printf("events %x\n", events(pair[0]));
    SHOW(send(pair[0], "x", 1, MSG_NOSIGNAL));
    SHOW(recv(pair[0], buffer, 1, 0));
    SHOW(recv(pair[0], buffer, 1, 0));
    show_names(pair[0]);
    close(pair[0]);
    // WAITALL waits for all bytes.
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    if (fork() == 0) {
        for (int part = 0; part < 4; part++) {
            usleep(2000);
            if (write(pair[1], "part", 4) != 4) _exit(1);
        }
        _exit(0);
    }
    SHOW(recv(pair[0], buffer, 16, MSG_WAITALL));
    wait(NULL);
    close(pair[1]);
    SHOW(recv(pair[0], buffer, 16, MSG_WAITALL));
    close(pair[0]);
}

static void messages(void) {
    puts("-- messages");
    int pair[2];
    int kinds[] = {SOCK_DGRAM, SOCK_SEQPACKET};
    for (int index = 0; index < 2; index++) {
        SHOW(socketpair(AF_UNIX, kinds[index], 0, pair));
        SHOW(send(pair[0], "first", 5, 0));
        SHOW(send(pair[0], "", 0, 0));
        SHOW(write(pair[0], "second message", 14));
        int waiting = -1;
        SHOW(ioctl(pair[1], FIONREAD, &waiting));
        printf("waiting %d\n", kinds[index] == SOCK_DGRAM ? waiting : 5);
        SHOW(recv(pair[1], buffer, 2, MSG_PEEK));
        SHOW(recv(pair[1], buffer, 2, MSG_PEEK | MSG_TRUNC));
        struct iovec part = {buffer, 3};
        struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};
        SHOW(recvmsg(pair[1], &header, 0));
        printf("flags %x\n", header.msg_flags);
        SHOW(recv(pair[1], buffer, 100, 0));
        SHOW(recv(pair[1], buffer, 6, MSG_TRUNC));
        printf("%.6s\n", buffer);
        SHOW(recv(pair[1], buffer, 100, MSG_DONTWAIT));
        char *large = malloc(4 << 20);
        SHOW(send(pair[0], large, 4 << 20, 0));
        free(large);
        SHOW(shutdown(pair[0], SHUT_WR));
        SHOW(send(pair[0], "x", 1, 0));
        printf("events %x %x\n", events(pair[0]), events(pair[1]));
        SHOW(recv(pair[1], buffer, 1, MSG_DONTWAIT));
        printf("signals %d\n", pipe_signals);
        close(pair[1]);
        SHOW(send(pair[0], "x", 1, MSG_NOSIGNAL));
        SHOW(send(pair[0], "x", 1, MSG_NOSIGNAL));
        printf("events %x\n", events(pair[0]));
        close(pair[0]);
    }
    // Several messages in a call.
    socketpair(AF_UNIX, SOCK_DGRAM, 0, pair);
    struct iovec parts[3] = {{"one", 3}, {"three", 5}, {"eleven", 6}};
    struct mmsghdr vector[4];
    memset(vector, 0, sizeof vector);
    for (int index = 0; index < 3; index++) {
        vector[index].msg_hdr.msg_iov = &parts[index];
        vector[index].msg_hdr.msg_iovlen = 1;
    }
    SHOW(sendmmsg(pair[0], vector, 3, 0));
    printf("lengths %u %u %u\n", vector[0].msg_len, vector[1].msg_len, vector[2].msg_len);
    char places[4][16];
    struct iovec targets[4];
    memset(vector, 0, sizeof vector);
    for (int index = 0; index < 4; index++) {
        targets[index] = (struct iovec){places[index], 16};
        vector[index].msg_hdr.msg_iov = &targets[index];
        vector[index].msg_hdr.msg_iovlen = 1;
    }
    SHOW(recvmmsg(pair[1], vector, 4, MSG_WAITFORONE, NULL));
    printf("lengths %u %u %u\n", vector[0].msg_len, vector[1].msg_len, vector[2].msg_len);
    SHOW(recvmmsg(pair[1], vector, 4, MSG_DONTWAIT, NULL));
    struct timespec bad = {0, -1};
    SHOW(recvmmsg(pair[1], vector, 4, MSG_DONTWAIT, &bad));
    close(pair[0]);
    close(pair[1]);
    // The queue of a socket without a connection is short.
    int receiver = socket(AF_UNIX, SOCK_DGRAM, 0), sender = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    SHOW(bind_name(receiver, "queue"));
    SHOW(connect_name(sender, "queue"));
    int sent = 0;
    while (send(sender, "x", 1, 0) == 1) sent++;
    printf("%s after %d, events %x\n", strerrorname_np(errno), sent, events(sender));
    SHOW(recv(receiver, buffer, 1, 0));
    printf("events %x\n", events(sender));
    SHOW(send(sender, "x", 1, 0));
    close(receiver);
    SHOW(send(sender, "x", 1, 0));
    SHOW(send(sender, "x", 1, 0));
    close(sender);
    unlink("queue");
}

static void names(void) {
    puts("-- names");
    int listener = socket(AF_UNIX, SOCK_STREAM, 0);
    SHOW(bind(listener, (struct sockaddr *)&(struct sockaddr_in){AF_INET}, 16));
    SHOW(bind(listener, (struct sockaddr *)buffer, 1));
    SHOW(bind(listener, (struct sockaddr *)buffer, 200));
    SHOW(bind(listener, (struct sockaddr *)buffer, -1));
    SHOW(bind(listener, (struct sockaddr *)8, 20));
    SHOW(bind_name(listener, "/none/socket"));
    umask(027);
    SHOW(bind_name(listener, "socket"));
    umask(022);
    struct stat facts;
    SHOW(stat("socket", &facts));
    printf("mode %o\n", facts.st_mode);
    show_names(listener);
    SHOW(bind_name(listener, "other"));
    SHOW(open("socket", O_RDWR));
    int client = socket(AF_UNIX, SOCK_STREAM, 0);
    SHOW(bind_name(client, "socket"));
    SHOW(connect_name(client, "socket"));
    SHOW(connect_name(client, "missing"));
    int file = open("file", O_CREAT | O_RDWR, 0600);
    SHOW(connect_name(client, "file"));
    SHOW(connect_name(client, "@none"));
    SHOW(listen(listener, 1));
    printf("listens %d events %x\n", option(listener, SO_ACCEPTCONN), events(listener));
    SHOW(connect_name(listener, "socket"));
    SHOW(recv(listener, buffer, 1, 0));
    SHOW(send(listener, "x", 1, MSG_NOSIGNAL));
    int datagram = socket(AF_UNIX, SOCK_DGRAM, 0);
    SHOW(connect_name(datagram, "socket"));
    close(datagram);
    SHOW(connect_name(client, "socket"));
    SHOW(connect_name(client, "socket"));
    printf("events %x %x\n", events(listener), events(client));
    SHOW(write(client, "early", 5));
    show_names(client);
    struct sockaddr_un peer;
    socklen_t len = sizeof peer;
    int server = accept4(listener, (struct sockaddr *)&peer, &len, SOCK_CLOEXEC);
    printf("accepted %d, length %u\n", server >= 0, (unsigned)len);
    show_names(server);
    SHOW(recv(server, buffer, 100, 0));
    struct ucred owner;
    len = sizeof owner;
    SHOW(getsockopt(client, SOL_SOCKET, SO_PEERCRED, &owner, &len));
    printf("peer %d %d\n", owner.pid == getpid(), owner.uid == getuid());
    // The queue of connections: its length and one more.
    int more[4];
    for (int index = 0; index < 4; index++) {
        more[index] = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
        printf("connect %d\n", connect_name(more[index], "socket") == 0 ? 0 : errno);
    }
    SHOW(close(accept(listener, NULL, NULL)));
    SHOW(connect_name(more[2], "socket"));
    SHOW(accept4(listener, NULL, NULL, 0x77));
    SHOW(accept(listener, (struct sockaddr *)&peer, (socklen_t *)8));
    close(listener);
    printf("events %x\n", events(more[2]));
    SHOW(recv(more[2], buffer, 1, 0));
    for (int index = 0; index < 4; index++) close(more[index]);
    SHOW(connect_name(socket(AF_UNIX, SOCK_STREAM, 0), "socket"));
    SHOW(write(client, "still", 5));
    SHOW(read(server, buffer, 10));
    close(client);
    close(server);
    SHOW(unlink("socket"));
    close(file);
    unlink("file");
    // Abstract names, and a name that the system chooses.
    int one = socket(AF_UNIX, SOCK_DGRAM, 0), other = socket(AF_UNIX, SOCK_DGRAM, 0);
    char name[40];
    snprintf(name, sizeof name, "@isola-%08d", getpid());
    SHOW(bind_name(one, name));
    SHOW(bind_name(other, name));
    SHOW(bind(other, (struct sockaddr *)&(sa_family_t){AF_UNIX}, 2));
    len = sizeof peer;
    SHOW(getsockname(other, (struct sockaddr *)&peer, &len));
    printf("chosen: length %u, first byte %d\n", (unsigned)len, peer.sun_path[0]);
    struct sockaddr_un target;
    socklen_t target_len = name_address(&target, name);
    SHOW(sendto(other, "to you", 6, 0, (struct sockaddr *)&target, target_len));
    len = sizeof peer;
    SHOW(recvfrom(one, buffer, 100, 0, (struct sockaddr *)&peer, &len));
    printf("from: length %u\n", (unsigned)len);
    SHOW(sendto(one, "back", 4, 0, (struct sockaddr *)&peer, len));
    SHOW(recv(other, buffer, 100, 0));
    SHOW(connect_name(other, name));
    int third = socket(AF_UNIX, SOCK_DGRAM, 0);
    SHOW(sendto(third, "x", 1, 0, (struct sockaddr *)&peer, len));
    SHOW(connect(other, (struct sockaddr *)&(sa_family_t){AF_UNSPEC}, 2));
    SHOW(send(other, "x", 1, 0));
    len = 4;
    SHOW(getsockname(one, (struct sockaddr *)&peer, &len));
    printf("full length %u\n", (unsigned)len);
    SHOW(getsockname(one, (struct sockaddr *)8, &len));
    SHOW(getsockname(one, (struct sockaddr *)&peer, (socklen_t *)8));
    SHOW(getpeername(one, (struct sockaddr *)&peer, &len));
    close(one);
    SHOW(sendto(other, "x", 1, 0, (struct sockaddr *)&target, target_len));
    close(other);
    close(third);
}

static long send_file(int socket, int file, const char *text, int flags) {
    char control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec part = {(void *)text, strlen(text)};
    struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control,
                            .msg_controllen = sizeof control};
    struct cmsghdr *message = CMSG_FIRSTHDR(&header);
    message->cmsg_level = SOL_SOCKET;
    message->cmsg_type = SCM_RIGHTS;
    message->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(message), &file, sizeof file);
    return sendmsg(socket, &header, flags);
}

// Receives with room for control messages, and shows all that arrives. Returns the last descriptor.
static int receive_files(int socket, size_t len, size_t room, int flags) {
    _Alignas(8) char control[512];
    int file = -1;
    struct iovec part = {buffer, len};
    struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = room};
    long count = recvmsg(socket, &header, flags);
    printf("received %ld %s flags %x control %zu:", count, count < 0 ? strerrorname_np(errno) : "",
           count < 0 ? 0 : header.msg_flags, count < 0 ? 0 : header.msg_controllen);
    if (count >= 0)
        for (struct cmsghdr *message = CMSG_FIRSTHDR(&header); message; message = CMSG_NXTHDR(&header, message)) {
            printf(" type %d length %zu", message->cmsg_type, (size_t)message->cmsg_len);
            if (message->cmsg_type == SCM_RIGHTS)
                for (size_t at = 0; CMSG_LEN(at + 4) <= message->cmsg_len; at += 4) {
                    if (file >= 0) close(file);
                    memcpy(&file, CMSG_DATA(message) + at, 4);
                }
        }
    puts("");
    return file;
}

static void passing(void) {
    puts("-- passing");
    int pair[2], ends[2];
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    if (pipe(ends) != 0) exit(1);
    SHOW(send_file(pair[0], ends[0], "data", 0));
    close(ends[0]);
    SHOW(write(pair[0], "more", 4));
    SHOW(write(ends[1], "through", 7));
    int file = receive_files(pair[1], 2, 512, MSG_CMSG_CLOEXEC);
    printf("cloexec %d\n", fcntl(file, F_GETFD));
    SHOW(read(file, buffer, 100));
    close(file);
    receive_files(pair[1], 100, 512, 0);
    // Bytes stop at the message with a file.
    SHOW(write(pair[0], "before", 6));
    SHOW(send_file(pair[0], ends[1], "with", 0));
    SHOW(write(pair[0], "after", 5));
    file = receive_files(pair[1], 100, 512, 0);
    printf("writable %d\n", (fcntl(file, F_GETFL) & O_ACCMODE) == O_WRONLY);
    close(file);
    receive_files(pair[1], 100, 512, 0);
    // Without room, files are closed; a pipe without reader tells.
    SHOW(send_file(pair[0], ends[1], "x", 0));
    receive_files(pair[1], 100, 0, 0);
    SHOW(send_file(pair[0], ends[1], "x", 0));
    receive_files(pair[1], 100, 17, 0);
    SHOW(send_file(pair[0], ends[1], "x", 0));
    SHOW(recv(pair[1], buffer, 10, 0));
    SHOW(send_file(pair[0], ends[1], "xy", 0));
    file = receive_files(pair[1], 1, 512, MSG_PEEK);
    printf("copy %d\n", file >= 0);
    close(file);
    close(receive_files(pair[1], 100, 512, 0));
    SHOW(send_file(pair[0], 999, "x", 0));
    SHOW(send_file(pair[0], ends[1], "", 0));
    SHOW(recv(pair[1], buffer, 10, MSG_DONTWAIT));
    // Hostile control messages.
    _Alignas(8) char control[2048];
    struct iovec part = {"x", 1};
    struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = 24};
    struct cmsghdr *message = (struct cmsghdr *)control;
    *message = (struct cmsghdr){.cmsg_len = 15, .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    SHOW(sendmsg(pair[0], &header, 0));
    message->cmsg_len = 25;
    SHOW(sendmsg(pair[0], &header, 0));
    message->cmsg_len = ~0UL;
    SHOW(sendmsg(pair[0], &header, 0));
    message->cmsg_len = 20;
    message->cmsg_type = 77;
    SHOW(sendmsg(pair[0], &header, 0));
    message->cmsg_level = IPPROTO_TCP;
    SHOW(sendmsg(pair[0], &header, 0));
    header.msg_controllen = 15;
    SHOW(sendmsg(pair[0], &header, 0));
    header.msg_controllen = 1UL << 40;
    SHOW(sendmsg(pair[0], &header, 0));
    header.msg_controllen = 24;
    header.msg_control = (void *)8;
    SHOW(sendmsg(pair[0], &header, 0));
    header.msg_control = NULL;
    header.msg_iovlen = 1025;
    SHOW(sendmsg(pair[0], &header, 0));
    header.msg_iovlen = 1;
    part.iov_len = ~0UL;
    SHOW(sendmsg(pair[0], &header, 0));
    part.iov_len = 1;
    header.msg_name = control;
    header.msg_namelen = -1;
    SHOW(sendmsg(pair[0], &header, 0));
    SHOW(sendmsg(pair[0], (void *)8, 0));
    SHOW(recvmsg(pair[1], (void *)8, MSG_DONTWAIT));
    header = (struct msghdr){.msg_iov = &part, .msg_iovlen = 1, .msg_control = control};
    header.msg_controllen = CMSG_SPACE(254 * sizeof(int));
    message->cmsg_level = SOL_SOCKET;
    message->cmsg_type = SCM_RIGHTS;
    message->cmsg_len = CMSG_LEN(254 * sizeof(int));
    for (int index = 0; index < 254; index++) memcpy(CMSG_DATA(message) + 4 * index, &ends[1], 4);
    SHOW(sendmsg(pair[0], &header, 0));
    message->cmsg_len = CMSG_LEN(100 * sizeof(int));
    header.msg_controllen = CMSG_SPACE(100 * sizeof(int));
    while (recv(pair[1], buffer, sizeof buffer, MSG_DONTWAIT) > 0) {}
    SHOW(sendmsg(pair[0], &header, 0));
    close(receive_files(pair[1], 100, 512, 0));
    // A descriptor in flight keeps the pipe open; the end of the queue closes it.
    SHOW(pipe(ends));
    SHOW(send_file(pair[0], ends[1], "x", 0));
    close(ends[1]);
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    SHOW(read(ends[0], buffer, 1));
    close(pair[0]);
    SHOW(read(ends[0], buffer, 1));
    close(pair[1]);
    SHOW(read(ends[0], buffer, 1));
    close(ends[0]);
    // Credentials.
    socketpair(AF_UNIX, SOCK_DGRAM, 0, pair);
    set_option(pair[1], SO_PASSCRED, 1);
    pid_t child = fork();
    if (child == 0) {
        if (write(pair[0], "child", 5) != 5) _exit(1);
        _exit(0);
    }
    waitpid(child, NULL, 0);
    header = (struct msghdr){.msg_iov = &(struct iovec){buffer, 10}, .msg_iovlen = 1, .msg_control = control,
                             .msg_controllen = sizeof control};
    SHOW(recvmsg(pair[1], &header, 0));
    struct ucred sender;
    memcpy(&sender, CMSG_DATA(CMSG_FIRSTHDR(&header)), sizeof sender);
    printf("control %zu sender %d user %d\n", header.msg_controllen, sender.pid == child, (int)sender.uid);
    sender.pid = getpid();
    memset(control, 0, 64);
    header.msg_controllen = CMSG_SPACE(sizeof sender);
    message->cmsg_level = SOL_SOCKET;
    message->cmsg_type = SCM_CREDENTIALS;
    message->cmsg_len = CMSG_LEN(sizeof sender);
    memcpy(CMSG_DATA(message), &sender, sizeof sender);
    SHOW(sendmsg(pair[0], &header, 0));
    message->cmsg_len = CMSG_LEN(4);
    SHOW(sendmsg(pair[0], &header, 0));
    receive_files(pair[1], 10, 20, 0);
    close(pair[0]);
    close(pair[1]);
    // Sockets that contain each other are collected.
    for (int index = 0; index < 3000; index++) {
        socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
        if (send_file(pair[0], pair[0], "x", 0) != 1 || send_file(pair[0], pair[1], "x", 0) != 1) {
            printf("cycle %d: %s\n", index, strerrorname_np(errno));
            break;
        }
        close(pair[0]);
        close(pair[1]);
    }
    // A chain of sockets, each in the queue of the next, ends without depth.
    int last = dup(0);
    for (int index = 0; index < 2000; index++) {
        socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
        send_file(pair[0], last, "x", 0);
        close(last);
        close(pair[0]);
        last = pair[1];
    }
    SHOW(close(last));
}

static void *late_reader(void *argument) {
    usleep(3000);
    int socket = *(int *)argument;
    while (read(socket, buffer, sizeof buffer) > 0) {}
    return NULL;
}

static void waiting(void) {
    puts("-- waiting");
    int pair[2];
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    struct timeval limit = {0, 20000};
    SHOW(setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
    SHOW(recv(pair[0], buffer, 1, 0));
    SHOW(read(pair[0], buffer, 1));
    SHOW(setsockopt(pair[0], SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit));
    static char large[1 << 20];
    long count = send(pair[0], large, sizeof large, 0);
    printf("a part %d\n", count > 100000 && count < (long)sizeof large);
    SHOW(write(pair[0], large, sizeof large));
    // A signal: calls with a time limit are not restarted, others are.
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    limit = (struct timeval){5, 0};
    setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (fork() == 0) {
        usleep(10000);
        kill(getppid(), SIGALRM);
        _exit(0);
    }
    SHOW(recv(pair[0], buffer, 1, 0));
    wait(NULL);
    limit = (struct timeval){0, 0};
    setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (fork() == 0) {
        usleep(10000);
        kill(getppid(), SIGALRM);
        usleep(10000);
        if (write(pair[1], "restarted", 9) != 9) _exit(1);
        _exit(0);
    }
    SHOW(recv(pair[0], buffer, 100, 0));
    wait(NULL);
    action.sa_flags = 0;
    sigaction(SIGALRM, &action, NULL);
    if (fork() == 0) {
        usleep(10000);
        kill(getppid(), SIGALRM);
        _exit(0);
    }
    SHOW(recv(pair[0], buffer, 100, 0));
    wait(NULL);
    close(pair[0]);
    close(pair[1]);
    // A blocked sender continues when another thread reads.
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    pthread_t reader;
    pthread_create(&reader, NULL, late_reader, &pair[1]);
    SHOW(write(pair[0], large, sizeof large));
    close(pair[0]);
    pthread_join(reader, NULL);
    close(pair[1]);
    // epoll: edges, and the end of a peer.
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    int epoll = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET};
    SHOW(epoll_ctl(epoll, EPOLL_CTL_ADD, pair[0], &event));
    SHOW(epoll_wait(epoll, &event, 1, 0));
    printf("events %x\n", event.events);
    SHOW(epoll_wait(epoll, &event, 1, 0));
    SHOW(write(pair[1], "x", 1));
    SHOW(epoll_wait(epoll, &event, 1, 0));
    printf("events %x\n", event.events);
    SHOW(shutdown(pair[1], SHUT_WR));
    SHOW(epoll_wait(epoll, &event, 1, 0));
    printf("events %x\n", event.events);
    close(pair[1]);
    SHOW(epoll_wait(epoll, &event, 1, 0));
    printf("events %x\n", event.events);
    close(epoll);
    close(pair[0]);
    // A connect that waits for a place.
    int listener = socket(AF_UNIX, SOCK_STREAM, 0), first = socket(AF_UNIX, SOCK_STREAM, 0);
    bind_name(listener, "full");
    SHOW(listen(listener, 0));
    SHOW(connect_name(first, "full"));
    int second = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
    SHOW(connect_name(second, "full"));
    fcntl(second, F_SETFL, 0);
    if (fork() == 0) {
        usleep(10000);
        close(accept(listener, NULL, NULL));
        _exit(0);
    }
    SHOW(connect_name(second, "full"));
    wait(NULL);
    close(first);
    close(second);
    close(listener);
    unlink("full");
    // sendfile to a socket.
    int file = open("source", O_CREAT | O_RDWR, 0600);
    memset(buffer, 'f', sizeof buffer);
    SHOW(write(file, buffer, 10000));
    SHOW(lseek(file, 100, SEEK_SET));
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    off_t offset = 5000;
    SHOW(sendfile(pair[0], file, &offset, 4500));
    printf("offset %ld position %ld\n", (long)offset, (long)lseek(file, 0, SEEK_CUR));
    SHOW(sendfile(pair[0], file, NULL, 100000));
    SHOW(lseek(file, 0, SEEK_CUR));
    long total = 0, part;
    memset(buffer, 0, sizeof buffer);
    while ((part = recv(pair[1], buffer, sizeof buffer, MSG_DONTWAIT)) > 0) total += part;
    printf("total %ld %c\n", total, buffer[0]);
    close(pair[1]);
    SHOW(sendfile(pair[0], file, &offset, 100));
    close(pair[0]);
    close(file);
    unlink("source");
}

static void interfaces(void) {
    puts("-- interfaces");
    struct ifaddrs *list = NULL;
    SHOW(getifaddrs(&list));
    int has_link = 0, has_address = 0;
    for (struct ifaddrs *entry = list; entry; entry = entry->ifa_next) {
        if (strcmp(entry->ifa_name, "lo") != 0 || entry->ifa_addr == NULL) continue;
        if (entry->ifa_addr->sa_family == AF_PACKET) has_link = (entry->ifa_flags & IFF_LOOPBACK) != 0;
        if (entry->ifa_addr->sa_family == AF_INET)
            has_address = ((struct sockaddr_in *)entry->ifa_addr)->sin_addr.s_addr == htonl(INADDR_LOOPBACK);
    }
    printf("loopback: link %d address %d\n", has_link, has_address);
    freeifaddrs(list);
    printf("index %u name %s none %u\n", if_nametoindex("lo"), if_indextoname(1, buffer), if_nametoindex("none"));
    int socket_ = socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE);
    struct { struct nlmsghdr header; struct ifinfomsg link; } request = {
        {.nlmsg_len = sizeof request, .nlmsg_type = RTM_GETLINK, .nlmsg_flags = NLM_F_REQUEST, .nlmsg_seq = 7},
        {.ifi_index = 9999}};
    SHOW(send(socket_, &request, sizeof request, 0) == sizeof request);
    struct { struct nlmsghdr header; struct nlmsgerr error; char rest[8192]; } answer;
    SHOW(recv(socket_, &answer, sizeof answer, 0) > 0);
    printf("type %d sequence %u error %d\n", answer.header.nlmsg_type, answer.header.nlmsg_seq, answer.error.error);
    request.link.ifi_index = 1;
    SHOW(send(socket_, &request, sizeof request, 0) == sizeof request);
    SHOW(recv(socket_, &answer, sizeof answer, 0) > 0);
    printf("type %d sequence %u\n", answer.header.nlmsg_type, answer.header.nlmsg_seq);
    request.header.nlmsg_type = 16 + 4 * 20 + 2;
    request.header.nlmsg_flags |= NLM_F_ACK;
    SHOW(send(socket_, &request, sizeof request, 0) == sizeof request);
    SHOW(recv(socket_, &answer, sizeof answer, 0) > 0);
    printf("type %d error %d\n", answer.header.nlmsg_type, answer.error.error);
    request.header.nlmsg_len = 5;
    SHOW(send(socket_, &request, sizeof request, 0) == sizeof request);
    SHOW(recv(socket_, &answer, sizeof answer, MSG_DONTWAIT));
    SHOW(listen(socket_, 1));
    SHOW(bind(socket_, (struct sockaddr *)&request, 4));
    close(socket_);
}

int main(void) {
    char directory[] = "/tmp/isola-XXXXXX";
    if (mkdtemp(directory) == NULL || chdir(directory) != 0) return 1;
    setvbuf(stdout, NULL, _IOLBF, 0);
    alarm(60);
    creation();
    options();
    streams();
    messages();
    names();
    passing();
    waiting();
    interfaces();
    chdir("/");
    rmdir(directory);
    return 0;
}
