"""Keeps sessions in a dictionary, and loses blocks of malloc as an extension would. Answers each line of its standard input
with the steps of its work and the seconds since it started."""

import ctypes
import sys
import threading
import time

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]


class Session:
    __slots__ = ("number", "name")

    def __init__(self, number):
        self.number = number
        self.name = str(number) * 3


cache = {}
steps = 0


def work():
    global steps
    while True:
        cache[steps] = Session(steps)
        libc.memset(libc.malloc(300), steps % 255 + 1, 300)
        steps += 1
        time.sleep(0.002)


start = time.monotonic()
threading.Thread(target=work, daemon=True).start()
for line in sys.stdin:
    print('{"steps": %d, "seconds": %f}' % (steps, time.monotonic() - start), flush=True)
