/* A pool of threads that share out the chunks of one job.
 *
 * Not OpenMP: its pools belong to the thread that calls, hang in a forked child, and split work evenly even where a core is
 * busy with something else. Here there is one pool a process, made anew after a fork, and a thread that is done takes chunks
 * from one that is not. Chunks are first given out in the order of memory, each thread a range of its own, so that pages lie near
 * the thread that touched them first. What a chunk computes never depends on who computes it.
 */
#ifndef PORTWRIGHT_THREADS_H
#define PORTWRIGHT_THREADS_H

#include <fenv.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#ifdef __linux__
#include <sched.h>
#endif

enum { MAX_THREADS = 512, MAX_CORES = 65536 };

typedef void (*chunk_work)(void *job, int64_t chunk);

struct range {
    _Atomic int64_t next;
    int64_t end;
    char apart[112]; /* two cache lines: neighbours are fetched in pairs */
};

static struct {
    pthread_mutex_t callers; /* held for a whole job: jobs of several callers run one after the other */
    pthread_mutex_t state;
    pthread_cond_t begun, finished;
    int num_workers, num_wanted; /* of a job that is open: the first so many may enter */
    int num_inside, num_left;
    uint64_t generation;
    chunk_work work;
    void *job;
    fenv_t rounding; /* the caller's: flushing of denormals must not depend on the thread */
    int num_bound, bound_cores[MAX_THREADS];
    struct range ranges[MAX_THREADS];
} pool = {
    .callers = PTHREAD_MUTEX_INITIALIZER,
    .state = PTHREAD_MUTEX_INITIALIZER,
    .begun = PTHREAD_COND_INITIALIZER,
    .finished = PTHREAD_COND_INITIALIZER,
};

static void forget_workers(void) /* in a forked child: the threads are gone, and a lock may have been held */
{
    pthread_mutex_init(&pool.callers, NULL);
    pthread_mutex_init(&pool.state, NULL);
    pthread_cond_init(&pool.begun, NULL);
    pthread_cond_init(&pool.finished, NULL);
    pool.num_workers = pool.num_wanted = pool.num_inside = pool.num_left = 0;
}

__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, forget_workers); }

static void work_as(int member, int num_members)
{
    for (int i = 0; i < num_members; i++) {
        struct range *from = &pool.ranges[(member + i) % num_members];
        int64_t chunk;
        while ((chunk = atomic_fetch_add_explicit(&from->next, 1, memory_order_relaxed)) < from->end)
            pool.work(pool.job, chunk);
    }
}

static void *serve(void *argument)
{
    const int member = (int)(intptr_t)argument;
    pthread_mutex_lock(&pool.state);
    uint64_t seen = pool.generation - (member < pool.num_wanted); /* a job that was opened before this thread ran is not missed */
    for (;;) {
        while (pool.generation == seen)
            pthread_cond_wait(&pool.begun, &pool.state);
        seen = pool.generation;
        const int num_members = pool.num_wanted;
        if (member >= num_members)
            continue;
        pool.num_inside++;
        pthread_mutex_unlock(&pool.state);
        fesetenv(&pool.rounding);
        work_as(member, num_members);
        pthread_mutex_lock(&pool.state);
        pool.num_left++;
        if (--pool.num_inside == 0)
            pthread_cond_signal(&pool.finished);
    }
    return NULL;
}

static pthread_t worker_ids[MAX_THREADS];

/* On its core of the list, or where the caller may run when there is no list. */
static int bind_worker(int member)
{
    int failed = 1;
#ifdef __linux__
    size_t size = CPU_ALLOC_SIZE(MAX_CORES);
    cpu_set_t *cores = CPU_ALLOC(MAX_CORES);
    if (!cores)
        return 1;
    CPU_ZERO_S(size, cores);
    if (pool.num_bound)
        CPU_SET_S(pool.bound_cores[member % pool.num_bound], size, cores);
    else
        pthread_getaffinity_np(pthread_self(), size, cores);
    failed = pthread_setaffinity_np(worker_ids[member], size, cores) != 0;
    CPU_FREE(cores);
#else
    (void)member;
#endif
    return failed;
}

static void make_workers(int num_wanted) /* callers held; fewer come into being where the system refuses */
{
    sigset_t all, before;
    sigfillset(&all); /* signals are for Python's threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (pool.num_workers < num_wanted) {
        int member = pool.num_workers;
        pthread_t id;
        if (pthread_create(&id, NULL, serve, (void *)(intptr_t)member))
            break;
        pthread_detach(id);
#ifdef __linux__
        pthread_setname_np(id, "portwright-adam");
#endif
        worker_ids[member] = id;
        pool.num_workers++;
        if (pool.num_bound)
            bind_worker(member);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* Gives how many threads took part. */
static int share_out(chunk_work work, void *job, int64_t num_chunks, int num_threads)
{
    if (num_threads > MAX_THREADS)
        num_threads = MAX_THREADS;
    if (num_threads > num_chunks)
        num_threads = (int)num_chunks;
    if (num_threads <= 1) {
        for (int64_t chunk = 0; chunk < num_chunks; chunk++)
            work(job, chunk);
        return 1;
    }
    pthread_mutex_lock(&pool.callers);
    make_workers(num_threads);
    if (num_threads > pool.num_workers)
        num_threads = pool.num_workers;
    if (num_threads == 0) {
        pthread_mutex_unlock(&pool.callers);
        return share_out(work, job, num_chunks, 1);
    }
    pthread_mutex_lock(&pool.state);
    pool.work = work;
    pool.job = job;
    fegetenv(&pool.rounding);
    for (int i = 0; i < num_threads; i++) {
        atomic_store_explicit(&pool.ranges[i].next, num_chunks * i / num_threads, memory_order_relaxed);
        pool.ranges[i].end = num_chunks * (i + 1) / num_threads;
    }
    pool.num_wanted = num_threads;
    pool.num_left = 0;
    pool.generation++;
    pthread_cond_broadcast(&pool.begun);
    /* Who leaves has seen that no chunk is left to take, so when nobody is inside all is done; who has not woken up yet, on a busy
     * machine, finds the job closed. */
    while (!pool.num_left || pool.num_inside)
        pthread_cond_wait(&pool.finished, &pool.state);
    pool.num_wanted = 0;
    pthread_mutex_unlock(&pool.state);
    pthread_mutex_unlock(&pool.callers);
    return num_threads;
}

/* Thread i stays on core i of the list from now on, also in a forked child; an empty list frees all. Gives how many could not be bound. */
int portwright_bind(const int32_t *cores, int num_cores)
{
    if (num_cores > MAX_THREADS)
        return num_cores;
    pthread_mutex_lock(&pool.callers);
    pool.num_bound = num_cores;
    for (int i = 0; i < num_cores; i++)
        pool.bound_cores[i] = cores[i];
    make_workers(num_cores);
    int num_failed = num_cores > pool.num_workers ? num_cores - pool.num_workers : 0;
    for (int i = 0; i < pool.num_workers; i++)
        num_failed += bind_worker(i);
    pthread_mutex_unlock(&pool.callers);
    return num_failed;
}

#endif
