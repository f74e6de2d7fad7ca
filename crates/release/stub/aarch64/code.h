/* The parts of the code in the target that are for aarch64.
 *
 * The code has no `svc` instruction: all of its calls are made by the `svc; ret` of the C library at `syscall_at`. It is
 * reached by `ret`: where the C library's pages are guarded (BTI), another branch may not lead there.
 *
 * enter: lowtide has set the registers for rt_sigprocmask at `syscall_at`, which blocks all signals, returns 0, and
 * returns to here. lowtide blocks them before the thread continues, so a handler runs first only if lowtide is killed
 * in between.
 *
 * The stack is the thread's own, below its frames, whenever a handler may run; else that of the block. */

#if !defined(LOWTIDE_ON_HOST) && !defined(LOWTIDE_IN_PROCESS)
__asm__(".text\n"
        "enter:\n"
        ".set block, enter + " S(CODE_BYTES) "\n"
        "    adr x19, block\n"
        "    tbnz x0, #63, 2f\n"
        "    mov x9, #" S(STACK_END) "\n"
        "    add x9, x19, x9\n"
        "    mov sp, x9\n"
        "    mov x29, xzr\n"
        "    mov x0, x19\n"
        "    bl may_clone\n"
        "    cbz w0, 1f\n"
        "    ldr x0, [x19, #" S(OFF_CLONE_FLAGS) "]\n"
        "    mov x1, #" S(THREAD_STACK_END) "\n"
        "    add x1, x19, x1\n"
        "    add x2, x19, #" S(OFF_TID) "\n"
        "    mov x3, xzr\n"
        "    mov x4, x2\n"
        "    mov x8, #" S(NR_CLONE) "\n"
        "    bl gate\n"
        "    cbz x0, 4f\n"
        "    str x0, [x19, #" S(OFF_CLONED) "]\n"
        "1:  mov x0, x19\n"
        "    bl work_borrowed\n"
        "    ldr x9, [x19, #" S(OFF_BACK_AT) "]\n"
        "    cbz w0, 3f\n"
        "2:  ldr x9, [x19, #" S(OFF_BROKEN_AT) "]\n" /* interrupted: the call returns what it would have returned */
        "3:  mov sp, x9\n"
        "    mov w10, #" S(STATE_BACK) "\n"
        "    add x11, x19, #" S(OFF_BORROWED) "\n"
        "    stlr w10, [x11]\n"
        "    mov x8, #" S(NR_RT_SIGRETURN) "\n" /* registers, mask and vectors at once */
        "gate:\n"
        "    ldr x16, block + " S(OFF_SYSCALL_AT) "\n"
        "    ret x16\n"
        "4:  mov x29, xzr\n"
        "    mov x0, x19\n"
        "    bl work_in_thread\n"
        "    udf #0\n");
#endif

#if defined(LOWTIDE_ON_HOST)
static long call6(long nr, u64 a, u64 b, u64 c, u64 d, u64 e, u64 f);
#else
#ifdef LOWTIDE_IN_PROCESS
#define SYSCALL "svc #0"
#else
#define SYSCALL "bl gate"
#endif
static inline __attribute__((always_inline)) long
call6(long nr, u64 a, u64 b, u64 c, u64 d, u64 e, u64 f) {
    register u64 x8 __asm__("x8") = (u64)nr;
    register u64 x0 __asm__("x0") = a;
    register u64 x1 __asm__("x1") = b;
    register u64 x2 __asm__("x2") = c;
    register u64 x3 __asm__("x3") = d;
    register u64 x4 __asm__("x4") = e;
    register u64 x5 __asm__("x5") = f;
    __asm__ volatile(SYSCALL
                     : "+r"(x0)
                     : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
                     : "x16", "x30", "memory");
    return (long)x0;
}
#endif
#define call3(nr, a, b, c) call6(nr, (u64)(a), (u64)(b), (u64)(c), 0, 0, 0)
#define call4(nr, a, b, c, d) call6(nr, (u64)(a), (u64)(b), (u64)(c), (u64)(d), 0, 0)

/* The kernel's own size: 4, 16 or 64 KiB. */
#define PAGE_BYTES(s) ((s)->page_bytes)

/* There is no counter that is used: the clock is the kernel's. */
#define counter() 0UL

#ifndef LOWTIDE_ON_HOST

/* Returns the address of the thread's own data. */
static inline __attribute__((always_inline, unused)) u64 own_data(void) {
    u64 at;
    __asm__ volatile("mrs %0, tpidr_el0" : "=r"(at));
    return at;
}

#ifndef LOWTIDE_IN_PROCESS
/* Returns memory, unless it has no bytes, and ends the thread, whose stack may be in there: the calls use none. */
static inline __attribute__((always_inline, noreturn)) void end_thread(u64 base, u64 bytes) {
    register u64 x8 __asm__("x8") = NR_MADVISE;
    register u64 x0 __asm__("x0") = base;
    register u64 x1 __asm__("x1") = bytes;
    register u64 x2 __asm__("x2") = MADV_DONTNEED;
    __asm__ volatile("cbz x1, 1f\n\tbl gate\n"
                     "1:\tmov x0, xzr\n\tmov x8, #" S(NR_EXIT) "\n\tbl gate"
                     : "+r"(x8), "+r"(x0)
                     : "r"(x1), "r"(x2)
                     : "x16", "x30", "memory");
    __builtin_unreachable();
}
#endif

#endif
