"""Writes 400,000 keys of 100 to 2,000 bytes to redis, and deletes 19 of 20."""
import random
import socket

KEYS = 400_000
BATCH = 1000


def command(*words):
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


connection = socket.create_connection(("127.0.0.1", 6390))
answers = connection.makefile("rb")
random.seed(1)


def send(commands):
    connection.sendall(b"".join(commands))
    for _ in commands:
        answers.readline()


for first in range(0, KEYS, BATCH):
    send([command(b"SET", b"k%d" % n, b"x" * random.randrange(100, 2000)) for n in range(first, first + BATCH)])
for first in range(0, KEYS, BATCH):
    send([command(b"DEL", b"k%d" % n) for n in range(first, first + BATCH) if n % 20])
