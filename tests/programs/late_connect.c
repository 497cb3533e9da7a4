// Preloaded into another program: each of its connections begins a second later.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/socket.h>
#include <unistd.h>

int connect(int descriptor, const struct sockaddr *address, socklen_t len) {
    int (*next)(int, const struct sockaddr *, socklen_t) =
        (int (*)(int, const struct sockaddr *, socklen_t))dlsym(RTLD_NEXT, "connect");
    sleep(1);
    return next(descriptor, address, len);
}
