/* Runs a command as the user 1000, with the capabilities whose numbers are given:
 *   as-user 19,38,39 COMMAND...
 *   as-user - COMMAND... */
#define _GNU_SOURCE
#include <grp.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static void check(long result, const char *what) {
    if (result == 0) return;
    perror(what);
    exit(125);
}

int main(int count, char **arguments) {
    if (count < 3) return 125;
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct sets[2];
    memset(sets, 0, sizeof sets);
    check(prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0), "PR_SET_KEEPCAPS");
    check(setgroups(0, NULL), "setgroups");
    check(setresgid(1000, 1000, 1000), "setresgid");
    check(setresuid(1000, 1000, 1000), "setresuid");
    unsigned long numbers[64], n = 0;
    for (char *name = strtok(arguments[1], ","); name && *name != '-' && n < 64; name = strtok(NULL, ",")) {
        numbers[n] = strtoul(name, NULL, 10);
        sets[numbers[n] / 32 % 2].permitted |= 1u << numbers[n] % 32;
        n++;
    }
    for (int i = 0; i < 2; i++) sets[i].effective = sets[i].inheritable = sets[i].permitted;
    check(syscall(SYS_capset, &header, sets), "capset");
    for (unsigned long i = 0; i < n; i++)
        check(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, numbers[i], 0, 0), "PR_CAP_AMBIENT_RAISE");
    execvp(arguments[2], arguments + 2);
    perror(arguments[2]);
    return 127;
}
