// TCP and UDP over loopback: results, errors and readiness of the calls. The output is the same on Linux and in a cell.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define SHOW(call)                                                              \
    do {                                                                        \
        errno = 0;                                                              \
        long result = (call);                                                   \
        printf("%s = %ld %s\n", #call, result, result < 0 ? strerrorname_np(errno) : ""); \
    } while (0)

static struct sockaddr_in v4(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

static int port_of(int socket) {
    struct sockaddr_storage address;
    socklen_t len = sizeof address;
    getsockname(socket, (struct sockaddr *)&address, &len);
    return ntohs(((struct sockaddr_in *)&address)->sin_port);
}

static int error_of(int socket) {
    int error = -1;
    socklen_t len = sizeof error;
    getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &len);
    return error;
}

static int events_of(int socket) {
    struct pollfd entry = {socket, POLLIN | POLLOUT | POLLRDHUP, 0};
    poll(&entry, 1, 0);
    return entry.revents;
}

// Waits until the socket has these events.
static void wait_for(int socket, int events) {
    struct pollfd entry = {socket, events, 0};
    poll(&entry, 1, 5000);
}

static int listener, port;

static int dial(void) {
    int client = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in to = v4(port);
    if (connect(client, (struct sockaddr *)&to, sizeof to)) perror("connect");
    return client;
}

static void streams(void) {
    struct sockaddr_in any = v4(0), peer;
    socklen_t len = sizeof peer;
    char bytes[100] = "";
    listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    SHOW(accept(listener, NULL, NULL));
    SHOW(recv(listener, bytes, 1, 0));
    SHOW(bind(listener, (struct sockaddr *)&any, sizeof any));
    SHOW(bind(listener, (struct sockaddr *)&any, sizeof any));
    SHOW(bind(listener, (struct sockaddr *)&any, 4));
    SHOW(listen(listener, 5));
    port = port_of(listener);
    int other = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in same = v4(port);
    SHOW(bind(other, (struct sockaddr *)&same, sizeof same));
    close(other);
    int client = dial();
    SHOW(events_of(listener));
    int server = accept4(listener, (struct sockaddr *)&peer, &len, SOCK_NONBLOCK);
    printf("accepted %d, from the client %d\n", server >= 0, ntohs(peer.sin_port) == port_of(client));
    SHOW(events_of(client));
    SHOW(recv(server, bytes, 10, 0));
    SHOW(send(client, "hello", 5, 0));
    wait_for(server, POLLIN);
    SHOW(recv(server, bytes, 10, MSG_PEEK));
    int waiting = 0;
    SHOW(ioctl(server, FIONREAD, &waiting));
    SHOW(waiting);
    SHOW(read(server, bytes, 3));
    SHOW(readv(server, (struct iovec[]){{bytes, 1}, {bytes + 1, 9}}, 2));
    SHOW(connect(client, (struct sockaddr *)&same, sizeof same));
    SHOW(shutdown(client, SHUT_WR));
    SHOW(send(client, "x", 1, MSG_NOSIGNAL));
    wait_for(server, POLLRDHUP);
    SHOW(events_of(server));
    SHOW(read(server, bytes, 10));
    SHOW(write(server, "answer", 6));
    close(server);
    wait_for(client, POLLHUP);
    SHOW(events_of(client));
    SHOW(recv(client, bytes, 100, MSG_WAITALL));
    SHOW(recv(client, bytes, 100, 0));
    close(client);
}

static void resets(void) {
    char bytes[10];
    int client = dial(), server = accept(listener, NULL, NULL);
    struct linger now = {1, 0};
    setsockopt(server, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    close(server);
    wait_for(client, POLLIN);
    SHOW(events_of(client));
    SHOW(error_of(client));
    SHOW(error_of(client));
    SHOW(send(client, "x", 1, MSG_NOSIGNAL));
    SHOW(recv(client, bytes, 10, 0));
    close(client);
    client = dial(), server = accept(listener, NULL, NULL);
    send(client, "unread", 6, 0);
    wait_for(server, POLLIN);
    close(server);
    wait_for(client, POLLIN);
    SHOW(recv(client, bytes, 10, 0));
    close(client);
    int lonely = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in nowhere = v4(1);
    SHOW(connect(lonely, (struct sockaddr *)&nowhere, sizeof nowhere));
    SHOW(getpeername(lonely, (struct sockaddr *)&nowhere, &(socklen_t){sizeof nowhere}));
    SHOW(shutdown(lonely, SHUT_RD));
    close(lonely);
}

static void options(void) {
    int client = dial(), value, server = accept(listener, NULL, NULL);
    struct { int level, name; const char *text; int set; } all[] = {
        {SOL_SOCKET, SO_TYPE, "SO_TYPE", -1}, {SOL_SOCKET, SO_PROTOCOL, "SO_PROTOCOL", -1},
        {SOL_SOCKET, SO_KEEPALIVE, "SO_KEEPALIVE", 1}, {IPPROTO_TCP, TCP_NODELAY, "TCP_NODELAY", 1},
        {IPPROTO_TCP, TCP_CORK, "TCP_CORK", 1}, {IPPROTO_TCP, TCP_KEEPIDLE, "TCP_KEEPIDLE", 100},
        {IPPROTO_TCP, TCP_KEEPINTVL, "TCP_KEEPINTVL", 0}, {IPPROTO_TCP, TCP_KEEPCNT, "TCP_KEEPCNT", 128},
        {IPPROTO_TCP, TCP_USER_TIMEOUT, "TCP_USER_TIMEOUT", 5000}, {IPPROTO_IP, IP_TOS, "IP_TOS", 16},
        {IPPROTO_IP, IP_TTL, "IP_TTL", 300}, {IPPROTO_IPV6, IPV6_V6ONLY, "IPV6_V6ONLY", 1},
        {IPPROTO_TCP, 9999, "unknown", 1}, {9999, 1, "unknown level", 1},
    };
    for (size_t index = 0; index < sizeof all / sizeof *all; index++) {
        printf("%s: ", all[index].text);
        if (all[index].set >= 0) SHOW(setsockopt(client, all[index].level, all[index].name, &all[index].set, sizeof(int)));
        socklen_t len = sizeof value;
        value = -1;
        int result = getsockopt(client, all[index].level, all[index].name, &value, &len);
        printf("    %d %s: %d\n", result, result ? strerrorname_np(errno) : "", value);
    }
    struct tcp_info info;
    socklen_t len = sizeof info;
    SHOW(getsockopt(client, IPPROTO_TCP, TCP_INFO, &info, &len));
    printf("state %d\n", info.tcpi_state);
    close(server);
    close(client);
}

static void *accept_one(void *unused) {
    (void)unused;
    char bytes[1000];
    long total = 0, count;
    int server = accept(listener, NULL, NULL);
    while ((count = read(server, bytes, sizeof bytes)) > 0) {
        for (long index = 0; index < count; index++)
            if (bytes[index] != (char)((total + index) * 7)) abort();
        total += count;
    }
    close(server);
    return (void *)total;
}

static void threads_and_processes(void) {
    static char bytes[3000000];
    pthread_t thread;
    void *total;
    for (size_t index = 0; index < sizeof bytes; index++) bytes[index] = (char)(index * 7);
    pthread_create(&thread, NULL, accept_one, NULL);
    int client = dial();
    SHOW(write(client, bytes, sizeof bytes));
    close(client);
    pthread_join(thread, &total);
    SHOW((long)total);
    pid_t child = fork();
    if (child == 0) _exit((long)accept_one(NULL) / 1000);
    client = dial();
    SHOW(write(client, bytes, 77000));
    close(client);
    int status;
    waitpid(child, &status, 0);
    SHOW(WEXITSTATUS(status));
}

static void edges(void) {
    char bytes[10];
    int client = dial(), server = accept(listener, NULL, NULL), events = epoll_create1(0);
    struct epoll_event wanted = {EPOLLIN | EPOLLET | EPOLLRDHUP, {.u32 = 7}}, found;
    epoll_ctl(events, EPOLL_CTL_ADD, server, &wanted);
    SHOW(epoll_wait(events, &found, 1, 0));
    send(client, "ab", 2, 0);
    SHOW(epoll_wait(events, &found, 1, 5000));
    SHOW(epoll_wait(events, &found, 1, 0));
    SHOW(read(server, bytes, 1));
    send(client, "c", 1, 0);
    SHOW(epoll_wait(events, &found, 1, 5000));
    close(client);
    SHOW(epoll_wait(events, &found, 1, 5000));
    SHOW(found.events);
    close(server);
    close(events);
}

static void datagrams(void) {
    static char bytes[70000];
    struct sockaddr_in any = v4(0), from;
    socklen_t len = sizeof from;
    int one = socket(AF_INET, SOCK_DGRAM, 0), two = socket(AF_INET, SOCK_DGRAM, 0);
    SHOW(bind(one, (struct sockaddr *)&any, sizeof any));
    struct sockaddr_in to = v4(port_of(one));
    SHOW(send(two, "x", 1, 0));
    SHOW(sendto(two, "question", 8, 0, (struct sockaddr *)&to, sizeof to));
    wait_for(one, POLLIN);
    SHOW(recvfrom(one, bytes, 3, MSG_TRUNC, (struct sockaddr *)&from, &len));
    SHOW(recv(one, bytes, 3, MSG_DONTWAIT));
    printf("from the sender: %d\n", ntohs(from.sin_port) == port_of(two));
    SHOW(connect(two, (struct sockaddr *)&to, sizeof to));
    close(one);
    SHOW(send(two, "x", 1, 0));
    wait_for(two, POLLIN);
    SHOW(recv(two, bytes, 3, MSG_DONTWAIT));
    SHOW(sendto(two, bytes, 70000, 0, NULL, 0));
    close(two);
}

static void both_families(void) {
    int both = socket(AF_INET6, SOCK_STREAM, 0), on = 1;
    struct sockaddr_in6 any = {.sin6_family = AF_INET6}, peer;
    socklen_t len = sizeof peer;
    SHOW(bind(both, (struct sockaddr *)&any, sizeof any));
    SHOW(setsockopt(both, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on));
    SHOW(listen(both, 5));
    int former = port;
    port = port_of(both);
    int client = dial(), server = accept(both, (struct sockaddr *)&peer, &len);
    char text[100];
    puts(inet_ntop(AF_INET6, &peer.sin6_addr, text, sizeof text));
    close(client), close(server), close(both);
    port = former;
    struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM}, *found;
    SHOW(getaddrinfo("127.0.0.1", "80", &hints, &found));
    puts(inet_ntop(AF_INET, &((struct sockaddr_in *)found->ai_addr)->sin_addr, text, sizeof text));
    SHOW(socket(AF_INET, SOCK_STREAM, IPPROTO_UDP));
    SHOW(socket(AF_INET, 77, 0));
}

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    signal(SIGPIPE, SIG_IGN);
    streams();
    resets();
    options();
    threads_and_processes();
    edges();
    datagrams();
    both_families();
    return 3;
}
