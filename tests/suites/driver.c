// Runs the programs of a test suite, one after the other, as the first process of a cell or of a PID namespace.
//
//   driver LIST FIRST [NAME...]     starts at line FIRST (counted from 0) of LIST; with names, runs only these programs
//
// LIST has a line `NAME SECONDS COMMAND` for each program. The command runs by /bin/sh in an empty folder and a process group
// of its own. After its end, or after its time limit, all other processes are killed. For each program the driver
// prints `@start NAME`, the output with `|` before each line, and `@end NAME exit|signal|timeout NUMBER MILLISECONDS`.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

// The most output of a program that is shown.
#define OUTPUT_MAX (512 * 1024)
// The time for the rest of the output after the end of all processes, in milliseconds.
#define DRAIN_MS 200

static int at_line_start = 1;
static size_t shown;

static long long now_ms(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000LL + time.tv_nsec / 1000000;
}

static void show(const char *text, size_t length) {
    for (size_t index = 0; index < length && shown < OUTPUT_MAX; index++, shown++) {
        if (at_line_start) putchar('|');
        putchar(text[index]);
        at_line_start = text[index] == '\n';
    }
}

// Shows what the pipe has. Returns 0 at its end.
static int drain(int fd) {
    char buffer[4096];
    ssize_t count;
    while ((count = read(fd, buffer, sizeof buffer)) > 0) show(buffer, count);
    return count < 0 && (errno == EAGAIN || errno == EINTR);
}

// Removes the files that programs leave in /tmp and /dev/shm.
static void clean(void) {
    pid_t pid = fork();
    if (pid == 0) {
        execl("/bin/sh", "sh", "-c", "cd / && rm -rf /tmp/* /dev/shm/* 2>/dev/null", NULL);
        _exit(127);
    }
    waitpid(pid, NULL, 0);
}

static void run_child(const char *name, const char *command, int output) {
    char folder[300];
    snprintf(folder, sizeof folder, "/tmp/%s", name);
    for (char *c = folder + 5; *c; c++)
        if (*c == '/') *c = '-';
    mkdir(folder, 0755);
    // Not a session of its own: a program that opens a terminal does not get it as the controlling one.
    setpgid(0, 0);
    int input = open("/dev/null", O_RDONLY);
    dup2(input, 0);
    dup2(output, 1);
    dup2(output, 2);
    for (int fd = 3; fd < 64; fd++) close(fd);
    if (chdir(folder) != 0) _exit(126);
    execl("/bin/sh", "sh", "-c", command, NULL);
    _exit(127);
}

static void run(const char *name, long seconds, const char *command) {
    int fds[2], status = 0, ended = 0, timed_out = 0;
    if (pipe2(fds, O_CLOEXEC) != 0) exit(1);
    fcntl(fds[0], F_SETFL, O_NONBLOCK);
    printf("@start %s\n", name);
    fflush(stdout);
    shown = 0;
    at_line_start = 1;
    long long start = now_ms(), deadline = start + seconds * 1000;
    pid_t pid = fork();
    if (pid == 0) run_child(name, command, fds[1]);
    close(fds[1]);
    int open_pipe = 1;
    while (!ended && !timed_out) {
        struct pollfd entry = {fds[0], POLLIN, 0};
        if (open_pipe) poll(&entry, 1, 50);
        else usleep(20000);
        if (open_pipe) open_pipe = drain(fds[0]);
        // Reaps orphans as well, since this is the first process.
        pid_t reaped;
        int one;
        while ((reaped = waitpid(-1, &one, WNOHANG)) > 0)
            if (reaped == pid) ended = 1, status = one;
        if (!ended && now_ms() >= deadline) timed_out = 1;
    }
    long long took = now_ms() - start;
    kill(-1, SIGKILL);
    if (timed_out) waitpid(pid, NULL, 0);
    for (long long end = now_ms() + DRAIN_MS; open_pipe && now_ms() < end;) {
        struct pollfd entry = {fds[0], POLLIN, 0};
        poll(&entry, 1, 20);
        open_pipe = drain(fds[0]);
    }
    while (waitpid(-1, NULL, WNOHANG) > 0) {}
    close(fds[0]);
    if (!at_line_start) putchar('\n');
    const char *how = timed_out ? "timeout" : WIFSIGNALED(status) ? "signal" : "exit";
    int number = timed_out ? 0 : WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
    printf("@end %s %s %d %lld\n", name, how, number, took);
    fflush(stdout);
    clean();
}

int main(int count, char **arguments) {
    if (count < 3) return 2;
    FILE *list = fopen(arguments[1], "re");
    if (!list) return 2;
    setsid();
    // A line at a time, so that messages of the cell do not divide one.
    setvbuf(stdout, NULL, _IOLBF, 1 << 16);
    setenv("PATH", "/usr/sbin:/usr/bin:/sbin:/bin", 1);
    setenv("HOME", "/root", 1);
    setenv("LC_ALL", "C.UTF-8", 1);
    char *line = NULL;
    size_t size = 0;
    long first = atol(arguments[2]);
    for (long number = 0; getline(&line, &size, list) > 0; number++) {
        char *rest = line;
        line[strcspn(line, "\n")] = 0;
        char *name = strsep(&rest, " "), *seconds = strsep(&rest, " ");
        int wanted = count == 3;
        for (int index = 3; index < count; index++) wanted |= strcmp(arguments[index], name) == 0;
        if (number >= first && wanted && rest) run(name, atol(seconds), rest);
    }
    puts("@done");
    return 0;
}
