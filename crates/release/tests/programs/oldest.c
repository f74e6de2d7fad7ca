/* The start of a program that must also run on the oldest library: see oldest.h. The start files of
 * the current library require __libc_start_main of 2.34. */
__asm__(".symver old_start_main, __libc_start_main@GLIBC_2.2.5");
int old_start_main(int (*)(int, char **, char **), int, char **, void (*)(void), void (*)(void),
                   void (*)(void), void *);
int main(int, char **, char **);

__attribute__((used)) void start_here(long *stack, void (*end)(void)) {
    old_start_main(main, (int)*stack, (char **)(stack + 1), 0, 0, end, stack);
}

__asm__(".globl _start\n_start: xor %ebp, %ebp\nmov %rsp, %rdi\nmov %rdx, %rsi\n"
        "and $-16, %rsp\ncall start_here\nhlt\n");
