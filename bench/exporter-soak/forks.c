/* A bounded fork bomb: forks about RATE processes per second, each of which lives for up to LIFE_MS and touches some
 * memory. At most 500 live at a time. SIGTERM ends it, once they have ended.
 *
 *   forks RATE LIFE_MS */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile sig_atomic_t ends;

static void end(int signal) { ends = signal; }

int main(int count, char **words) {
    if (count != 3) return 2;
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    signal(SIGTERM, end);
    int rate = atoi(words[1]), life_ms = atoi(words[2]), alive = 0;
    for (unsigned long i = 0; !ends; i++) {
        while (alive && waitpid(-1, NULL, alive >= 500 ? 0 : WNOHANG) > 0) alive--;
        pid_t child = fork();
        if (!child) {
            size_t bytes = i % 64 * 65536;
            char *memory = malloc(bytes + 1);
            memset(memory, 1, bytes);
            free(memory);
            usleep(i * 7919 % (life_ms + 1) * 1000);
            _exit(0);
        }
        if (child > 0) alive++;
        usleep(1000000 / rate);
    }
    while (wait(NULL) > 0);
}
