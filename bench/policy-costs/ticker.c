/* Has 100 MiB of free memory, and then waits, or sleeps for a millisecond at a time. At SIGUSR1 it prints the latest
 * wake-up since the last one, in microseconds. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t asked;
static void ask(int signal) { asked = signal; }

static long now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000L + now.tv_nsec / 1000;
}

int main(int argc, char **argv) {
    static char *blocks[100 * 1024];
    for (int i = 0; i < 100 * 1024; i++) memset(blocks[i] = malloc(1000), 1, 1000);
    for (int i = 0; i < 100 * 1024 - 1; i++) free(blocks[i]);
    struct sigaction action = {.sa_handler = ask, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &action, NULL);
    if (argc > 1 && !strcmp(argv[1], "wait"))
        for (;;) pause();
    for (long latest = 0;;) {
        struct timespec millisecond = {0, 1000000};
        long begin = now_us();
        nanosleep(&millisecond, NULL);
        long late = now_us() - begin - 1000;
        if (asked) {
            asked = 0;
            printf("%ld\n", latest);
            fflush(stdout);
            latest = 0;
        } else if (late > latest) {
            latest = late;
        }
    }
}
