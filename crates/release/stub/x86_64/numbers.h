/* The numbers of system calls on x86-64. */
#define NR_RT_SIGACTION 13
#define NR_RT_SIGPROCMASK 14
#define NR_RT_SIGRETURN 15
#define NR_MADVISE 28
#define NR_CLONE 56
#define NR_EXIT 60
#define NR_RT_SIGPENDING 127
#define NR_PRCTL 157
#define NR_FUTEX 202
#define NR_CLOCK_GETTIME 228

#define CODE_BYTES 4096 /* of the mapping of the code; the shared block follows */
#define ADDRESS_BITS 47 /* of the addresses that the C library uses */
