// Inter-process communication by memory: System V objects, priority-inheriting and robust mutexes, futexes, process descriptors.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

union argument {
    int value;
    struct semid_ds *set;
    unsigned short *values;
};

static const char *name(long result) { return result == -1 ? strerrorname_np(errno) : "ok"; }

static void shared_memory(void) {
    printf("size 0: %s\n", name(shmget(IPC_PRIVATE, 0, 0600)));
    int id = shmget(IPC_PRIVATE, 10000, IPC_CREAT | 0600);
    char *first = shmat(id, NULL, 0), *second = shmat(id, NULL, SHM_RDONLY);
    strcpy(first + 9000, "shared");
    struct shmid_ds facts;
    shmctl(id, IPC_STAT, &facts);
    printf("%s: %zu bytes, %lu attached, mode %o\n", second + 9000, facts.shm_segsz, (unsigned long)facts.shm_nattch,
           facts.shm_perm.mode);
    printf("unaligned: %s\n", name((long)shmat(id, first + 1, 0)));
    printf("occupied: %s\n", name((long)shmat(id, first, 0)));
    pid_t child = fork();
    if (child == 0) {
        strcpy(first + 9000, "by the child");
        shmctl(id, IPC_STAT, &facts);
        _exit((int)facts.shm_nattch);
    }
    int status;
    waitpid(child, &status, 0);
    shmctl(id, IPC_STAT, &facts);
    printf("%s: %d, then %lu\n", second + 9000, WEXITSTATUS(status), (unsigned long)facts.shm_nattch);
    printf("detach: %s\n", name(shmdt(second)));
    printf("detach twice: %s\n", name(shmdt(second)));
    printf("remove: %s\n", name(shmctl(id, IPC_RMID, NULL)));
    shmctl(id, IPC_STAT, &facts);
    printf("until the last detachment: %s, %lu\n", first + 9000, (unsigned long)facts.shm_nattch);
    shmdt(first);
    printf("gone: %s\n", name(shmctl(id, IPC_STAT, &facts)));
    key_t key = 0x1234567 + getpid();
    id = shmget(key, 100, IPC_CREAT | IPC_EXCL | 0600);
    printf("exclusive: %s\n", name(shmget(key, 100, IPC_CREAT | IPC_EXCL | 0600)));
    printf("too large: %s\n", name(shmget(key, 101, 0)));
    printf("same: %d\n", shmget(key, 100, 0) == id);
    shmctl(id, IPC_RMID, NULL);
    printf("no longer: %s\n", name(shmget(key, 100, 0)));
}

static void semaphores(void) {
    int id = semget(IPC_PRIVATE, 2, 0600);
    printf("set: %s\n", name(semctl(id, 0, SETVAL, (union argument){.value = 3})));
    printf("too large: %s\n", name(semctl(id, 0, SETVAL, (union argument){.value = 40000})));
    struct sembuf down = {0, -2, 0}, nowait = {0, -2, IPC_NOWAIT}, other = {1, -1, 0}, far = {2, 1, 0};
    printf("down: %s\n", name(semop(id, &down, 1)));
    printf("not now: %s\n", name(semop(id, &nowait, 1)));
    printf("no such: %s\n", name(semop(id, &far, 1)));
    struct timespec time = {0, 3000000};
    printf("timeout: %s\n", name(semtimedop(id, &down, 1, &time)));
    pid_t child = fork();
    if (child == 0) {
        // Undone at the end.
        struct sembuf undo = {0, 5, SEM_UNDO}, up = {1, 1, 0};
        semop(id, &undo, 1);
        semop(id, &up, 1);
        _exit(semctl(id, 0, GETVAL));
    }
    printf("waited: %s\n", name(semop(id, &other, 1)));
    int status;
    waitpid(child, &status, 0);
    printf("in the child: %d, then %d\n", WEXITSTATUS(status), semctl(id, 0, GETVAL));
    unsigned short values[2] = {7, 8};
    semctl(id, 0, SETALL, (union argument){.values = values});
    values[0] = values[1] = 0;
    semctl(id, 0, GETALL, (union argument){.values = values});
    struct semid_ds facts;
    semctl(id, 0, IPC_STAT, (union argument){.set = &facts});
    printf("all: %d %d of %lu\n", values[0], values[1], (unsigned long)facts.sem_nsems);
    child = fork();
    if (child == 0) {
        struct sembuf zero = {0, 0, 0};
        int result = semop(id, &zero, 1);
        _exit(result == -1 && errno == EIDRM ? 1 : 2);
    }
    while (semctl(id, 0, GETZCNT) == 0) usleep(1000);
    semctl(id, 0, IPC_RMID);
    waitpid(child, &status, 0);
    printf("removed: %d, %s\n", WEXITSTATUS(status), name(semctl(id, 0, GETVAL)));
}

struct message {
    long kind;
    char text[100];
};

static void messages(void) {
    int id = msgget(IPC_PRIVATE, 0600);
    struct message message = {3, "three"};
    printf("send: %s\n", name(msgsnd(id, &message, 6, 0)));
    message = (struct message){1, "one"};
    msgsnd(id, &message, 4, 0);
    message.kind = 0;
    printf("bad type: %s\n", name(msgsnd(id, &message, 4, 0)));
    printf("none of this type: %s\n", name(msgrcv(id, &message, 100, 7, IPC_NOWAIT)));
    printf("too long: %s\n", name(msgrcv(id, &message, 3, 3, 0)));
    ssize_t len = msgrcv(id, &message, 100, -5, 0);
    printf("lowest: %zd %ld %s\n", len, message.kind, message.text);
    len = msgrcv(id, &message, 2, 0, MSG_NOERROR);
    printf("cut: %zd %ld %.2s\n", len, message.kind, message.text);
    pid_t child = fork();
    if (child == 0) {
        for (long number = 1; number <= 3000; number++) {
            struct message sent = {number % 5 + 1, ""};
            sprintf(sent.text, "%ld", number);
            msgsnd(id, &sent, 50, 0);
        }
        _exit(0);
    }
    long sum = 0, in_order = 1, last = 0;
    for (int count = 0; count < 3000; count++) {
        msgrcv(id, &message, 100, 0, 0);
        sum += atol(message.text);
        in_order &= atol(message.text) > last;
        last = atol(message.text);
    }
    waitpid(child, NULL, 0);
    printf("sum %ld, in order %ld\n", sum, in_order);
    struct msqid_ds facts;
    msgctl(id, IPC_STAT, &facts);
    printf("left: %lu, last sender is the child: %d\n", (unsigned long)facts.msg_qnum, facts.msg_lspid == child);
    msgctl(id, IPC_RMID, NULL);
    printf("removed: %s\n", name(msgsnd(id, &message, 1, 0)));
}

static pthread_mutex_t mutex;
static long counter;

static void *count(void *argument) {
    for (int round = 0; round < 1000; round++) {
        pthread_mutex_lock(&mutex);
        counter++;
        pthread_mutex_unlock(&mutex);
    }
    return argument;
}

static void *hold(void *argument) {
    pthread_mutex_lock(argument);
    return NULL;
}

static void mutexes(void) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setprotocol(&attributes, PTHREAD_PRIO_INHERIT);
    printf("init: %d\n", pthread_mutex_init(&mutex, &attributes));
    pthread_t threads[4];
    for (int number = 0; number < 4; number++) pthread_create(&threads[number], NULL, count, NULL);
    for (int number = 0; number < 4; number++) pthread_join(threads[number], NULL);
    printf("counter: %ld\n", counter);
    pthread_mutex_lock(&mutex);
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    printf("again: %s\n", strerrorname_np(pthread_mutex_timedlock(&mutex, &time)));
    pthread_mutex_unlock(&mutex);
    // An owner that ends.
    for (int inherits = 0; inherits < 2; inherits++) {
        pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
        pthread_mutexattr_setprotocol(&attributes, inherits ? PTHREAD_PRIO_INHERIT : PTHREAD_PRIO_NONE);
        pthread_mutex_t robust;
        pthread_mutex_init(&robust, &attributes);
        pthread_create(&threads[0], NULL, hold, &robust);
        pthread_join(threads[0], NULL);
        printf("the owner has ended: %s\n", strerrorname_np(pthread_mutex_lock(&robust)));
        printf("consistent: %d\n", pthread_mutex_consistent(&robust));
        pthread_mutex_unlock(&robust);
        printf("lock: %d\n", pthread_mutex_lock(&robust));
        pthread_mutex_unlock(&robust);
    }
    // A process that ends while another waits.
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutex_t *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_mutex_init(shared, &attributes);
    int ends[2];
    pipe(ends);
    pid_t child = fork();
    if (child == 0) {
        pthread_mutex_lock(shared);
        write(ends[1], "x", 1);
        usleep(20000);
        _exit(0);
    }
    char byte;
    read(ends[0], &byte, 1);
    printf("the owner's process ends: %s\n", strerrorname_np(pthread_mutex_lock(shared)));
    waitpid(child, NULL, 0);
}

static long futex(unsigned *word, int operation, unsigned value, void *timeout, unsigned *second, unsigned third) {
    return syscall(SYS_futex, word, operation, value, timeout, second, third);
}

static void futexes(void) {
    unsigned word = 0;
    printf("unlock another's: %s\n", name(futex(&word, FUTEX_UNLOCK_PI, 0, NULL, NULL, 0)));
    printf("lock: %s\n", name(futex(&word, FUTEX_LOCK_PI, 0, NULL, NULL, 0)));
    printf("the word is the thread: %d\n", word == (unsigned)gettid());
    printf("lock twice: %s\n", name(futex(&word, FUTEX_LOCK_PI, 0, NULL, NULL, 0)));
    printf("unlock: %s", name(futex(&word, FUTEX_UNLOCK_PI, 0, NULL, NULL, 0)));
    printf(" %u\n", word & FUTEX_TID_MASK);
    word = 0x3ffffff;
    printf("no such owner: %s\n", name(futex(&word, FUTEX_LOCK_PI, 0, NULL, NULL, 0)));
    word = 5;
    printf("other value: %s\n", name(futex(&word, FUTEX_WAIT, 4, NULL, NULL, 0)));
    unsigned second = 8;
    printf("wake and add: %ld, %u\n", futex(&word, FUTEX_WAKE_OP, 1, (void *)1, &second, FUTEX_OP(FUTEX_OP_ADD, 3, FUTEX_OP_CMP_EQ, 8)), 0);
    printf("added: %u\n", second);
}

static void processes(void) {
    pid_t child = fork();
    if (child == 0) for (;;) pause();
    int descriptor = syscall(SYS_pidfd_open, child, 0);
    struct pollfd entry = {descriptor, POLLIN, 0};
    printf("runs: %d\n", poll(&entry, 1, 0));
    printf("signal: %s\n", name(syscall(SYS_pidfd_send_signal, descriptor, SIGTERM, NULL, 0)));
    int ready = poll(&entry, 1, 5000);
    printf("ended: %d\n", ready);
    siginfo_t info = {0};
    printf("wait: %s", name(waitid(P_PIDFD, descriptor, &info, WEXITED)));
    printf(" %d by %d\n", info.si_pid == child, info.si_status);
    printf("no longer: %s\n", name(syscall(SYS_pidfd_send_signal, descriptor, SIGTERM, NULL, 0)));
    printf("no process: %s\n", name(syscall(SYS_pidfd_open, 32767, 0)));
    printf("bad flags: %s\n", name(syscall(SYS_pidfd_open, getpid(), 1)));
    close(descriptor);
    int ends[2];
    pipe(ends);
    int itself = syscall(SYS_pidfd_open, getpid(), 0);
    int copy = syscall(SYS_pidfd_getfd, itself, ends[1], 0);
    write(copy, "copied", 6);
    char text[8] = {0};
    read(ends[0], text, 6);
    printf("%s\n", text);
    // A grandchild whose parent ends gets a signal, and becomes a child of its grandparent.
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    child = fork();
    if (child == 0) {
        pid_t grandchild = fork();
        if (grandchild == 0) {
            prctl(PR_SET_PDEATHSIG, SIGUSR2);
            write(ends[1], "x", 1);
            for (;;) pause();
        }
        read(ends[0], text, 1);
        _exit(0);
    }
    waitpid(child, NULL, 0);
    int status;
    pid_t orphan = wait(&status);
    printf("orphan: %d, ended by %d\n", orphan > 0 && orphan != child, WIFSIGNALED(status) ? WTERMSIG(status) : 0);
    int is_reaper = 0, signal = 9;
    prctl(PR_GET_CHILD_SUBREAPER, &is_reaper);
    prctl(PR_GET_PDEATHSIG, &signal);
    printf("reaper %d, signal %d\n", is_reaper, signal);
    struct rusage usage;
    getrusage(RUSAGE_CHILDREN, &usage);
    printf("children used memory: %d\n", usage.ru_maxrss > 100);
}

int main(void) {
    setvbuf(stdout, NULL, _IONBF, 0);
    shared_memory();
    semaphores();
    messages();
    mutexes();
    futexes();
    processes();
    return 0;
}
