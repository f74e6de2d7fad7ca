# The program of program.rs, as a test gives it to another assembler. MAP stands for the descriptor of a map.
r6 = r1                             # regs
r7 = MAP ll                         # counters
r1 = *(u64 *)(r7 + 24)              # counters->namespace_device
r2 = *(u64 *)(r7 + 32)              # counters->namespace_inode
r3 = r10
r3 += -8                            # &own
r4 = 8
call 120                            # bpf_get_ns_current_pid_tgid
if r0 != 0 goto out
r1 = *(u32 *)(r10 - 4)              # own.tgid
r2 = *(u64 *)(r7 + 40)              # counters->pid
if r1 != r2 goto out
r8 = 1
lock *(u64 *)(r7 + 8) += r8         # counters->hits
r8 = *(u64 *)(r7 + 8)
r9 = *(u64 *)(r7 + 0)               # counters->limit
if r8 > r9 goto missed
r8 = *(u64 *)(r6 + 80)              # regs->ax
if r8 == 0 goto out
r1 = MAP ll                         # samples
r2 = 2136                           # sizeof *sample
r3 = 0
call 131                            # bpf_ringbuf_reserve
if r0 == 0 goto missed
r9 = r0                             # sample
*(u64 *)(r9 + 0) = r8               # sample->address
call 5                              # bpf_ktime_get_ns
*(u64 *)(r9 + 8) = r0               # sample->time
r1 = *(u64 *)(r6 + 128)             # regs->ip
*(u64 *)(r9 + 16) = r1              # sample->instruction
r1 = *(u64 *)(r6 + 152)             # regs->sp
*(u64 *)(r9 + 24) = r1              # sample->stack_pointer
r1 = *(u64 *)(r6 + 0)              # regs->r15
*(u64 *)(r9 + 32) = r1              # sample->registers[0]
r1 = *(u64 *)(r6 + 8)              # regs->r14
*(u64 *)(r9 + 40) = r1              # sample->registers[1]
r1 = *(u64 *)(r6 + 16)              # regs->r13
*(u64 *)(r9 + 48) = r1              # sample->registers[2]
r1 = *(u64 *)(r6 + 24)              # regs->r12
*(u64 *)(r9 + 56) = r1              # sample->registers[3]
r1 = *(u64 *)(r6 + 32)              # regs->bp
*(u64 *)(r9 + 64) = r1              # sample->registers[4]
r1 = *(u64 *)(r6 + 40)              # regs->bx
*(u64 *)(r9 + 72) = r1              # sample->registers[5]
r2 = 2048
*(u64 *)(r9 + 80) = r2              # sample->stack_length
r1 = r9
r1 += 88                            # sample->stack
r3 = *(u64 *)(r6 + 152)             # regs->sp
call 112                            # bpf_probe_read_user
if r0 == 0 goto submit
r2 = 512
*(u64 *)(r9 + 80) = r2
r1 = r9
r1 += 88
r3 = *(u64 *)(r6 + 152)
call 112
if r0 == 0 goto submit
r2 = 0
*(u64 *)(r9 + 80) = r2
submit:
r1 = r9
r2 = 1                              # BPF_RB_NO_WAKEUP
call 132                            # bpf_ringbuf_submit
r0 = 0
exit
missed:
r8 = 1
lock *(u64 *)(r7 + 16) += r8        # counters->missed
out:
r0 = 0
exit
