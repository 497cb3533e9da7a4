// Processes: fork, exec, wait, exit codes, signals between them, process groups.
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile sig_atomic_t handled;

static void handler(int number, siginfo_t *info, void *context) {
    (void)context;
    handled = number * 1000 + (info->si_code == SI_USER) * 100;
}

static void report(const char *what, int status) {
    if (WIFEXITED(status)) printf("%s: exit code %d\n", what, WEXITSTATUS(status));
    if (WIFSIGNALED(status)) printf("%s: signal %d\n", what, WTERMSIG(status));
    if (WIFSTOPPED(status)) printf("%s: stopped by %d\n", what, WSTOPSIG(status));
    if (WIFCONTINUED(status)) printf("%s: continued\n", what);
    fflush(stdout);
}

int main(int argc, char **argv) {
    int status;
    if (argc > 1) {
        printf("executed with %s and %s\n", argv[1], getenv("TEST"));
        return 42;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    int value = 1;
    pid_t child = fork();
    if (child == 0) {
        value = 2;
        _exit(value + 5);
    }
    waitpid(child, &status, 0);
    report("child", status);
    printf("value %d\n", value);

    child = vfork();
    if (child == 0) {
        char *arguments[] = {argv[0], "one", NULL};
        char *environment[] = {"TEST=two", NULL};
        execve("/proc/self/exe", arguments, environment);
        _exit(9);
    }
    waitpid(child, &status, 0);
    report("executed", status);

    child = fork();
    if (child == 0) for (;;) pause();
    kill(child, SIGSTOP);
    waitpid(child, &status, WUNTRACED);
    report("stopped child", status);
    kill(child, SIGCONT);
    waitpid(child, &status, WCONTINUED);
    report("continued child", status);
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    report("killed child", status);

    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_RESTART};
    sigaction(SIGUSR1, &action, NULL);
    child = fork();
    if (child == 0) {
        usleep(20000);
        kill(getppid(), SIGUSR1);
        usleep(20000);
        _exit(3);
    }
    // The handler interrupts the wait, which is restarted.
    pid_t waited = waitpid(child, &status, 0);
    printf("restarted %d, handled %d\n", waited == child, (int)handled);
    report("sender", status);

    child = fork();
    if (child == 0) {
        *(volatile int *)16 = 1;
        _exit(1);
    }
    waitpid(child, &status, 0);
    report("faulting child", status);

    // The id of an orphan's parent changes while the orphan computes.
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    pid_t reaper = getpid();
    child = fork();
    if (child == 0) {
        if (fork() > 0)
            _exit(0);
        while (getppid() != reaper)
            ;
        _exit(4);
    }
    waitpid(child, &status, 0);
    report("parent of the orphan", status);
    waitpid(-1, &status, 0);
    report("orphan", status);
    printf("no child: %s\n", waitpid(-1, &status, 0) < 0 ? strerror(errno) : "one");
    printf("group %d session %d\n", getpgrp() == getpid() || getpgrp() > 0, getsid(0) >= 0);
    execl("/none", "none", NULL);
    printf("no program: %s\n", strerror(errno));
    return 7;
}
