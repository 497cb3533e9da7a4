// Preloaded into another program: each of its connections begins a second later, or with REFUSED in its environment fails.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

int connect(int descriptor, const struct sockaddr *address, socklen_t len) {
    int (*next)(int, const struct sockaddr *, socklen_t) =
        (int (*)(int, const struct sockaddr *, socklen_t))dlsym(RTLD_NEXT, "connect");
    if (getenv("REFUSED")) {
        errno = ECONNREFUSED;
        return -1;
    }
    sleep(1);
    return next(descriptor, address, len);
}
