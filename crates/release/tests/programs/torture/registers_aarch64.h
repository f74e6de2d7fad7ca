/* The registers of aarch64. registers_aarch64.S depends on these offsets. */
struct registers {
    uint64_t general[30]; /* x0 to x29 */
    unsigned char vectors[32][16];
    uint64_t fpcr, fpsr;
};
static const int argument[6] = {0, 1, 2, 3, 4, 5}; /* of a system call */
enum { GENERAL = 30, NUMBER = 8, RESULT = 0 };

static int vector_width(void) { return 16; }

static void draw_registers(struct registers *r, uint64_t *seed) {
    for (size_t i = 0; i < offsetof(struct registers, fpcr) / 8; i++) {
        uint64_t value = draw(seed);
        memcpy((char *)r + 8 * i, &value, 8);
    }
    r->fpcr = (draw(seed) % 4) << 22; /* rounding mode */
    r->fpsr = draw(seed) & 0x9f;      /* what has happened */
}

/* The kernel itself changes x8: where it continues a wait after a stop, it has the number of restart_syscall. */
static void compare(const struct registers *given, const struct registers *found, int width, const char *call) {
    for (int i = 0; i < GENERAL; i++)
        if (i != RESULT && i != NUMBER && given->general[i] != found->general[i])
            violation("%s: x%d was %lx, is %lx", call, i, given->general[i], found->general[i]);
    for (int i = 0; i < 32; i++)
        if (memcmp(given->vectors[i], found->vectors[i], (size_t)width))
            violation("%s: vector register %d is another", call, i);
    if (given->fpcr != found->fpcr || given->fpsr != found->fpsr)
        violation("%s: a control word is another", call);
    shared->checks++;
}
