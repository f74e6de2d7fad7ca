"""A server that keeps the session of each request, and never removes one."""

import itertools
import time

SESSIONS = {}


class Session:
    def __init__(self, number):
        self.number = number
        self.token = f"{number:032d}" * 20


def handle(number):
    SESSIONS[number] = Session(number)


for number in itertools.count():
    handle(number)
    time.sleep(0.0005)
