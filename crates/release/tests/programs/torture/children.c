/* Children: a fork has all blocks unchanged and a working heap, and a vfork and a posix_spawn end
 * as they must. */
#include "torture.h"
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char *no_words[] = {0};
static char *true_words[] = {"true", 0};

static void child(struct mutator *m) {
    signal(SIGALRM, SIG_DFL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, 0);
    alarm(240); /* Later than the watch over its parent. */
    int before = shared->violations;
    mutator_sweep(m);
    mutator_shrink(m, m->count / 2);
    mutator_grow(m, m->count + 300);
    mutator_sweep(m);
    _exit(shared->violations == before ? 0 : 1);
}

static void await(pid_t pid, const char *kind) {
    int status = -1;
    pid_t got = waitpid(pid, &status, 0);
    if (got == pid && status == 0) {
        shared->forks_ok++;
        return;
    }
    shared->forks_failed++;
    if (got < 0 && errno == EINTR) shared->eintr++;
    violation("%s: waitpid gave %d (errno %d), status %x", kind, got, got < 0 ? errno : 0, status);
}

static void failed(const char *kind, int error) {
    shared->forks_failed++;
    violation("%s: errno %d", kind, error);
}

/* Blocks all signals: a fork starts again at each signal, and waitpid must not be interrupted. */
static sigset_t block_all(void) {
    sigset_t all, before;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before);
    return before;
}

void fork_once(struct mutator *m) {
    sigset_t before = block_all();
    pid_t pid = fork();
    if (pid == 0) child(m);
    if (pid > 0) await(pid, "fork");
    else failed("fork", errno);
    sigprocmask(SIG_SETMASK, &before, 0);
    progress();
}

static void vfork_once(void) {
    pid_t pid = vfork();
    if (pid == 0) {
        execve("/bin/true", true_words, no_words);
        _exit(9);
    }
    if (pid > 0) await(pid, "vfork");
    else failed("vfork", errno);
}

void spawn_once(void) {
    sigset_t before = block_all();
    pid_t pid;
    int error = posix_spawn(&pid, "/bin/true", 0, 0, true_words, no_words);
    if (error) failed("posix_spawn", error);
    else await(pid, "posix_spawn");
    vfork_once();
    sigprocmask(SIG_SETMASK, &before, 0);
    progress();
}

void children_run(struct worker *w, void *mutator) {
    struct mutator *m = mutator;
    mutator_grow(m, 2000);
    while (!is_stopping(w->phase)) {
        fork_once(m);
        mutator_shrink(m, m->count / 2);
        mutator_grow(m, 2000);
        rest(between(&m->seed, 20, 150) * MS);
        spawn_once();
        rest(between(&m->seed, 20, 150) * MS);
    }
    mutator_shrink(m, 0);
}
