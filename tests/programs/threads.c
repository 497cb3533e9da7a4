// Threads: creation, joins, mutexes, condition variables, thread-local storage, signals to threads.
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#define THREADS 8
#define ROUNDS 2000

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static long counter, turn;
static __thread long own;

static void *count(void *argument) {
    for (int round = 0; round < ROUNDS; round++) {
        pthread_mutex_lock(&mutex);
        counter++;
        own++;
        pthread_mutex_unlock(&mutex);
    }
    return (void *)(own + (long)argument);
}

static void *take_turns(void *argument) {
    long number = (long)argument;
    for (int round = 0; round < 50; round++) {
        pthread_mutex_lock(&mutex);
        while (turn % THREADS != number) pthread_cond_wait(&changed, &mutex);
        turn++;
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&mutex);
    }
    return NULL;
}

static void *compute(void *argument) {
    double sum = 0;
    for (long number = 1; number < 2000000; number++) sum += 1.0 / (number * (double)(long)argument);
    return sum > 14 ? (void *)1 : NULL;
}

int main(void) {
    pthread_t threads[THREADS];
    long sum = 0;
    for (long number = 0; number < THREADS; number++) pthread_create(&threads[number], NULL, count, (void *)number);
    for (int number = 0; number < THREADS; number++) {
        void *result;
        pthread_join(threads[number], &result);
        sum += (long)result;
    }
    printf("counter %ld, sum %ld, own %ld\n", counter, sum, own);
    for (long number = 0; number < THREADS; number++)
        pthread_create(&threads[number], NULL, take_turns, (void *)number);
    for (int number = 0; number < THREADS; number++) pthread_join(threads[number], NULL);
    printf("turns %ld\n", turn);
    // More computing threads than cores: none of them calls the kernel.
    sum = 0;
    for (int number = 0; number < 4; number++) pthread_create(&threads[number], NULL, compute, (void *)1);
    for (int number = 0; number < 4; number++) {
        void *result;
        pthread_join(threads[number], &result);
        sum += (long)result;
    }
    printf("computed %ld\n", sum);
    return 0;
}
