/* long wait_with_registers(const struct registers *given, struct registers *found, int width)
 *
 * Makes a system call with a known value in every register, and records the values after it: x0 to x29, all vector
 * registers, and both control words. x30 has the address of the record. The offsets are those of struct registers in
 * registers_aarch64.h. */
#ifdef __aarch64__
#define VECTORS 240
#define FPCR    (VECTORS + 32 * 16)
#define FPSR    (FPCR + 8)

        .text
        .globl wait_with_registers
        .type wait_with_registers, %function
wait_with_registers:
        stp x29, x30, [sp, #-176]!
        stp x19, x20, [sp, #16]
        stp x21, x22, [sp, #32]
        stp x23, x24, [sp, #48]
        stp x25, x26, [sp, #64]
        stp x27, x28, [sp, #80]
        stp d8, d9, [sp, #96]
        stp d10, d11, [sp, #112]
        stp d12, d13, [sp, #128]
        stp d14, d15, [sp, #144]

        mov x30, x1
        ldr x9, [x0, #FPCR]
        msr fpcr, x9
        ldr x9, [x0, #FPSR]
        msr fpsr, x9
        .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
        ldr q\n, [x0, #(VECTORS + 16 * \n)]
        .endr
        .irp n, 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29
        ldr x\n, [x0, #(8 * \n)]
        .endr
        ldr x0, [x0]
        svc #0

        .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29
        str x\n, [x30, #(8 * \n)]
        .endr
        .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
        str q\n, [x30, #(VECTORS + 16 * \n)]
        .endr
        mrs x9, fpcr
        str x9, [x30, #FPCR]
        mrs x9, fpsr
        str x9, [x30, #FPSR]

        msr fpcr, xzr
        ldp x19, x20, [sp, #16]
        ldp x21, x22, [sp, #32]
        ldp x23, x24, [sp, #48]
        ldp x25, x26, [sp, #64]
        ldp x27, x28, [sp, #80]
        ldp d8, d9, [sp, #96]
        ldp d10, d11, [sp, #112]
        ldp d12, d13, [sp, #128]
        ldp d14, d15, [sp, #144]
        ldp x29, x30, [sp], #176
        ret
        .size wait_with_registers, . - wait_with_registers
#endif
        .section .note.GNU-stack, "", %progbits
