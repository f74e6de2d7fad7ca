/* long wait_with_registers(const struct registers *given, struct registers *found, int width)
 *
 * Makes a system call with a known value in every register, and records the values after it:
 * general registers, all vector registers of `width` bytes (16, 32 or 64), the masks of AVX-512,
 * MMX, the two control words, and the 128 bytes below the stack pointer, which belong to the
 * caller. The offsets are those of struct registers in registers_x86_64.h. */
#ifdef __x86_64__
#define VECTORS 128
#define MASKS   (VECTORS + 32 * 64)
#define MMX     (MASKS + 64)
#define RED     (MMX + 64)
#define MXCSR   (RED + 128)
#define FCW     (MXCSR + 4)


        .text
        .globl wait_with_registers
        .type wait_with_registers, @function
wait_with_registers:
        push %rbx
        push %rbp
        push %r12
        push %r13
        push %r14
        push %r15
        push %rsi                               /* 8(%rsp): found */
        push %rdx                               /* 0(%rsp): width */

        .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
        mov (RED + 8 * \n)(%rdi), %rax
        mov %rax, (-128 + 8 * \n)(%rsp)
        .endr
        ldmxcsr MXCSR(%rdi)
        fldcw FCW(%rdi)
        .irp n, 0,1,2,3,4,5,6,7
        movq (MMX + 8 * \n)(%rdi), %mm\n
        .endr

        cmpl $32, (%rsp)
        je 2f
        ja 3f
        .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
        movdqu (VECTORS + 64 * \n)(%rdi), %xmm\n
        .endr
        jmp 4f
2:      .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
        vmovdqu (VECTORS + 64 * \n)(%rdi), %ymm\n
        .endr
        jmp 4f
3:      .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
        vmovdqu64 (VECTORS + 64 * \n)(%rdi), %zmm\n
        .endr
        .irp n, 0,1,2,3,4,5,6,7
        kmovq (MASKS + 8 * \n)(%rdi), %k\n
        .endr
4:
        mov 0(%rdi), %rax
        mov 16(%rdi), %rsi
        mov 24(%rdi), %rdx
        mov 32(%rdi), %r10
        mov 40(%rdi), %r8
        mov 48(%rdi), %r9
        mov 56(%rdi), %rbx
        mov 64(%rdi), %rbp
        mov 72(%rdi), %r12
        mov 80(%rdi), %r13
        mov 88(%rdi), %r14
        mov 96(%rdi), %r15
        mov 8(%rdi), %rdi
        syscall

        mov 8(%rsp), %rcx                       /* the call has used rcx and r11 anyway */
        mov %rax, 0(%rcx)
        mov %rdi, 8(%rcx)
        mov %rsi, 16(%rcx)
        mov %rdx, 24(%rcx)
        mov %r10, 32(%rcx)
        mov %r8, 40(%rcx)
        mov %r9, 48(%rcx)
        mov %rbx, 56(%rcx)
        mov %rbp, 64(%rcx)
        mov %r12, 72(%rcx)
        mov %r13, 80(%rcx)
        mov %r14, 88(%rcx)
        mov %r15, 96(%rcx)
        .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
        mov (-128 + 8 * \n)(%rsp), %rax
        mov %rax, (RED + 8 * \n)(%rcx)
        .endr

        cmpl $32, (%rsp)
        je 2f
        ja 3f
        .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
        movdqu %xmm\n, (VECTORS + 64 * \n)(%rcx)
        .endr
        jmp 4f
2:      .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
        vmovdqu %ymm\n, (VECTORS + 64 * \n)(%rcx)
        .endr
        vzeroupper
        jmp 4f
3:      .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
        vmovdqu64 %zmm\n, (VECTORS + 64 * \n)(%rcx)
        .endr
        .irp n, 0,1,2,3,4,5,6,7
        kmovq %k\n, (MASKS + 8 * \n)(%rcx)
        .endr
        vzeroupper
4:
        .irp n, 0,1,2,3,4,5,6,7
        movq %mm\n, (MMX + 8 * \n)(%rcx)
        .endr
        emms
        stmxcsr MXCSR(%rcx)
        fnstcw FCW(%rcx)

        movl $0x1f80, -4(%rsp)                  /* as C expects them */
        ldmxcsr -4(%rsp)
        movw $0x37f, -4(%rsp)
        fldcw -4(%rsp)
        mov 0(%rcx), %rax
        pop %rdx
        pop %rsi
        pop %r15
        pop %r14
        pop %r13
        pop %r12
        pop %rbp
        pop %rbx
        ret
        .size wait_with_registers, . - wait_with_registers
#endif
        .section .note.GNU-stack, "", @progbits
