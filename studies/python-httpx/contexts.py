"""Opens many HTTP clients at once, holds them for a while, drops them all, and waits.

Each client builds a TLS context of its own, with all trusted certificates in it: many small blocks
of a C library, allocated and freed through malloc by an interpreter that looks idle afterwards.
"""

import asyncio
import gc
import sys
import time

import httpx


async def client(hold):
    async with httpx.AsyncClient():
        await asyncio.sleep(hold)


async def burst(contexts, hold):
    print(f"opening {contexts} contexts", flush=True)
    await asyncio.gather(*(client(hold) for _ in range(contexts)))


def main():
    contexts, hold = int(sys.argv[1]), float(sys.argv[2])
    asyncio.run(burst(contexts, hold))
    gc.collect()
    print("dropped all", flush=True)
    time.sleep(hold)


main()
