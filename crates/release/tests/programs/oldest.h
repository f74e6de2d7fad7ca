/* Included before each file by -include: selects the symbols of the oldest library (2.31), not
 * those of the library that a program is linked with. In 2.31 they are in libpthread.so.0, which
 * must precede libc.so.6:
 *
 *   cc -O2 -include oldest.h -fno-pie -no-pie -nostartfiles -o PROGRAM FILES oldest.c \
 *      -Wl,--no-as-needed "$(cc -print-file-name=libpthread.so.0)"
 *   DIR/ld-linux-x86-64.so.2 --library-path DIR PROGRAM ...
 */
#ifndef __ASSEMBLER__
#define OLD(name) __asm__(".symver " #name ", " #name "@GLIBC_2.2.5")
OLD(pthread_create);
OLD(pthread_join);
OLD(pthread_detach);
OLD(pthread_sigmask);
OLD(pthread_attr_setstacksize);
OLD(pthread_condattr_setpshared);
OLD(pthread_mutexattr_init);
OLD(pthread_mutexattr_setpshared);
OLD(pthread_barrier_init);
OLD(pthread_barrier_wait);
OLD(sem_init);
OLD(sem_timedwait);
__asm__(".symver pthread_condattr_setclock, pthread_condattr_setclock@GLIBC_2.3.3");
#endif
