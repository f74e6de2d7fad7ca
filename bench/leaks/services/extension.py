"""Keeps sessions in a dictionary, and calls an extension that forgets references. The directory of the extension is the
argument."""

import sys
import time

sys.path.insert(0, sys.argv[1])
import extension


class Session:
    __slots__ = ("number", "name")

    def __init__(self, number):
        self.number = number
        self.name = str(number) * 3


sessions = {}
for number in range(10**9):
    sessions[number] = Session(number)
    extension.lose(300)
    time.sleep(0.02)
