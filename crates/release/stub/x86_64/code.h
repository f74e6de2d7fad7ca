/* The parts of the code in the target that are for x86-64. */

#if !defined(LOWTIDE_ON_HOST) && !defined(LOWTIDE_IN_PROCESS)

/* All parameters are in the shared block, whose address is known relative to this code.
 *
 * The code has no `syscall` instruction: all of its calls are made by the `syscall; ret` of the C library at
 * `syscall_at`. A thread under Syscall User Dispatch may make calls from there, and only from there.
 *
 * enter: the kernel "restarts" rt_sigprocmask at `syscall_at`, which blocks all signals, returns 0, and returns to
 * here. If a signal came before that, its handler has run and the result is -EINTR (or the call restarts, for handlers
 * with SA_RESTART, as the interrupted one would have done).
 *
 * The stack is the thread's own, below its frames, whenever a handler may run; else that of the block. The worker
 * thread returns from `clone` as if its stack had called: to the address at the top of its stack. */
__asm__(".text\n"
        "enter:\n"
        ".set block, enter + " S(CODE_BYTES) "\n"
        "    test %eax, %eax\n"
        "    js 2f\n"
        "    lea block(%rip), %rbx\n"
        "    lea " S(STACK_END) "(%rbx), %rsp\n"
        "    xor %ebp, %ebp\n"
        "    cld\n"
        "    mov %rbx, %rdi\n"
        "    call may_clone\n"
        "    test %eax, %eax\n"
        "    jz 1f\n"
        "    lea 4f(%rip), %rax\n"
        "    lea " S(THREAD_STACK_END) " - 8(%rbx), %rsi\n"
        "    mov %rax, (%rsi)\n"
        "    mov $" S(NR_CLONE) ", %eax\n"
        "    mov " S(OFF_CLONE_FLAGS) "(%rbx), %rdi\n"
        "    lea " S(OFF_TID) "(%rbx), %rdx\n"
        "    mov %rdx, %r10\n"
        "    call gate\n"
        "    mov %rax, " S(OFF_CLONED) "(%rbx)\n"
        "1:  mov %rbx, %rdi\n"
        "    call work_borrowed\n"
        "    test %eax, %eax\n"
        "    mov " S(OFF_BACK_AT) "(%rbx), %rsp\n"
        "    jz 3f\n"
        "2:  lea block(%rip), %rbx\n" /* interrupted: the call returns what it would have returned */
        "    mov " S(OFF_BROKEN_AT) "(%rbx), %rsp\n"
        "3:  movl $" S(STATE_BACK) ", " S(OFF_BORROWED) "(%rbx)\n"
        "    mov $" S(NR_RT_SIGRETURN) ", %eax\n" /* registers, mask and vectors at once */
        "gate3:\n" /* a call with three arguments: the others are 0 */
        "    xor %r10d, %r10d\n"
        "gate4:\n"
        "    xor %r8d, %r8d\n"
        "    xor %r9d, %r9d\n"
        "gate:\n"
        "    jmp *block + " S(OFF_SYSCALL_AT) "(%rip)\n"
        "4:  xor %ebp, %ebp\n"
        "    mov %rbx, %rdi\n"
        "    call work_in_thread\n"
        "    ud2\n");

#endif

#if defined(LOWTIDE_ON_HOST)
static long call6(long nr, u64 a, u64 b, u64 c, u64 d, u64 e, u64 f);
#else
#define ARGUMENTS3(nr, a, b, c) "a"((long)(nr)), "D"((u64)(a)), "S"((u64)(b)), "d"((u64)(c))
#ifdef LOWTIDE_IN_PROCESS
#define SYSCALL "syscall"
#else
#define SYSCALL "call gate" /* It writes below the stack pointer: this code is compiled without a red zone. */
#endif
static inline __attribute__((always_inline)) long
call6(long nr, u64 a, u64 b, u64 c, u64 d, u64 e, u64 f) {
    register u64 r10 __asm__("r10") = d;
    register u64 r8 __asm__("r8") = e;
    register u64 r9 __asm__("r9") = f;
    long result;
    __asm__ volatile(SYSCALL
                     : "=a"(result)
                     : ARGUMENTS3(nr, a, b, c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}
#endif

#if defined(LOWTIDE_ON_HOST) || defined(LOWTIDE_IN_PROCESS)
#define call3(nr, a, b, c) call6(nr, (u64)(a), (u64)(b), (u64)(c), 0, 0, 0)
#define call4(nr, a, b, c, d) call6(nr, (u64)(a), (u64)(b), (u64)(c), (u64)(d), 0, 0)
#else
/* The same as above, in less code. */
#define call3(nr, a, b, c) \
    ({ \
        long result; \
        __asm__ volatile("call gate3" \
                         : "=a"(result) \
                         : ARGUMENTS3(nr, a, b, c) \
                         : "rcx", "r8", "r9", "r10", "r11", "memory"); \
        result; \
    })
#define call4(nr, a, b, c, d) \
    ({ \
        register u64 r10 __asm__("r10") = (u64)(d); \
        long result; \
        __asm__ volatile("call gate4" \
                         : "=a"(result) \
                         : ARGUMENTS3(nr, a, b, c), "r"(r10) \
                         : "rcx", "r8", "r9", "r11", "memory"); \
        result; \
    })
#endif

/* The kernel's own size. */
#define PAGE_BYTES(s) PAGE

/* Reads the time stamp counter. */
#define counter() __builtin_ia32_rdtsc()

#ifndef LOWTIDE_ON_HOST

/* Returns the address of the thread's own data. */
static inline __attribute__((always_inline, unused)) u64 own_data(void) {
    u64 at;
    __asm__ volatile("mov %%fs:0, %0" : "=r"(at));
    return at;
}

#ifndef LOWTIDE_IN_PROCESS
/* Returns memory, unless it has no bytes, and ends the thread, whose stack may be in there: the address to return to is
 * put into the page that stays, at the end of `pages`. The inputs in rax and rdi are overwritten without being outputs:
 * the second call never returns, so no code of the compiler runs after it. */
static inline __attribute__((always_inline, noreturn)) void end_thread(u64 base, u64 bytes) {
    __asm__ volatile("lea block + " S(OFF_ARGUMENT) "(%%rip), %%rsp\n\t"
                     "test %%rsi, %%rsi\n\tjz 1f\n\tcall gate\n"
                     "1:\txor %%edi, %%edi\n\tmov $" S(NR_EXIT) ", %%eax\n\tjmp gate"
                     :
                     : "a"((u64)NR_MADVISE), "D"(base), "S"(bytes), "d"((u64)MADV_DONTNEED)
                     : "rcx", "r11", "memory");
    __builtin_unreachable();
}
#endif

#endif
