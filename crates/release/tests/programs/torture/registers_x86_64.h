/* The registers of x86-64. registers_x86_64.S depends on these offsets. */
struct registers {
    uint64_t general[16]; /* rax rdi rsi rdx r10 r8 r9 rbx rbp r12 r13 r14 r15 */
    unsigned char vectors[32][64];
    uint64_t masks[8], mmx[8], red_zone[16];
    uint32_t mxcsr;
    uint16_t fcw;
};
enum { GENERAL = 13 };
static const char *const names[GENERAL] = {"rax", "rdi", "rsi", "rdx", "r10", "r8", "r9",
                                           "rbx", "rbp", "r12", "r13", "r14", "r15"};
static const int argument[6] = {1, 2, 3, 4, 5, 6}; /* of a system call */
enum { NUMBER = 0, RESULT = 0 };

static int vector_width(void) {
    if (__builtin_cpu_supports("avx512bw")) return 64;
    return __builtin_cpu_supports("avx") ? 32 : 16;
}

static void draw_registers(struct registers *r, uint64_t *seed) {
    for (size_t i = 0; i < offsetof(struct registers, mxcsr) / 8; i++) {
        uint64_t value = draw(seed);
        memcpy((char *)r + 8 * i, &value, 8);
    }
    r->mxcsr = 0x1f80 | (uint32_t)(draw(seed) % 4) << 13; /* rounding mode */
    r->fcw = (uint16_t)(0x37f | (draw(seed) % 4) << 10);
}

static void compare(const struct registers *given, const struct registers *found, int width, const char *call) {
    for (int i = 1; i < GENERAL; i++)
        if (given->general[i] != found->general[i])
            violation("%s: %s was %lx, is %lx", call, names[i], given->general[i], found->general[i]);
    for (int i = 0; i < (width == 64 ? 32 : 16); i++)
        if (memcmp(given->vectors[i], found->vectors[i], (size_t)width))
            violation("%s: vector register %d is another", call, i);
    if (width == 64 && memcmp(given->masks, found->masks, sizeof given->masks))
        violation("%s: a mask register is another", call);
    if (memcmp(given->mmx, found->mmx, sizeof given->mmx)) violation("%s: an MMX register is another", call);
    if (memcmp(given->red_zone, found->red_zone, sizeof given->red_zone))
        violation("%s: the red zone is another", call);
    if (given->mxcsr != found->mxcsr || given->fcw != found->fcw)
        violation("%s: a control word is another", call);
    shared->checks++;
}
