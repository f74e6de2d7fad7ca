/* tree N SECONDS CHANGE: N processes that share 32 MiB. With CHANGE 1 each of them takes and frees
 * between 64 and 512 KiB twenty times a second, so that its figures differ at every tick. */
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv) {
    int n = atoi(argv[1]), seconds = atoi(argv[2]), change = argc > 3 && atoi(argv[3]);
    size_t shared = 32 << 20;
    memset(malloc(shared), 1, shared);
    for (int i = 1; i < n; i++) {
        if (fork() == 0) {
            for (int tick = 0; tick < seconds * 20; tick++) {
                size_t size = change ? (1 + tick % 8) * 65536 : 0;
                char *block = size ? malloc(size + 131072) : NULL;
                if (size) memset(block, tick, size);
                usleep(50000);
                free(block);
            }
            _exit(0);
        }
    }
    while (wait(NULL) > 0) {}
    return 0;
}
