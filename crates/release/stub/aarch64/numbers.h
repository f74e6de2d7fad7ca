/* The numbers of system calls on aarch64. */
#define NR_RT_SIGACTION 134
#define NR_RT_SIGPROCMASK 135
#define NR_RT_SIGRETURN 139
#define NR_MADVISE 233
#define NR_CLONE 220
#define NR_EXIT 93
#define NR_RT_SIGPENDING 136
#define NR_PRCTL 167
#define NR_FUTEX 98
#define NR_CLOCK_GETTIME 113

#define CODE_BYTES 65536 /* of the mapping of the code, whatever the size of a page is; the shared block follows */
#define ADDRESS_BITS 48  /* of the addresses that the C library uses */
