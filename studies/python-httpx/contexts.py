"""Opens many HTTP clients at once, holds them for a while, drops them all, and waits.

Each client builds a TLS context of its own, with all trusted certificates in it: many small blocks
of a C library, allocated and freed through malloc by an interpreter that looks idle afterwards.
"""

import asyncio
import ctypes
import gc
import sys
import threading
import time

import httpx


async def client(hold):
    async with httpx.AsyncClient():
        await asyncio.sleep(hold)


async def burst(contexts, hold):
    print(f"opening {contexts} contexts", flush=True)
    await asyncio.gather(*(client(hold) for _ in range(contexts)))


def release_each_second():
    """Asks tcmalloc in a thread to return free memory to the operating system, once a second."""
    loaded = ctypes.CDLL(None)
    try:
        # gperftools
        release = loaded.MallocExtension_ReleaseToSystem
    except AttributeError:
        # Google's
        release = loaded.MallocExtension_Internal_ReleaseMemoryToSystem
    release.argtypes = [ctypes.c_size_t]

    def run():
        while True:
            time.sleep(1)
            release(1 << 40)

    threading.Thread(target=run, daemon=True).start()


def release_in_background():
    """Runs the background thread that Google's tcmalloc provides, at up to 1 GiB per second."""
    loaded = ctypes.CDLL(None)
    rate = loaded.MallocExtension_Internal_SetBackgroundReleaseRate
    rate.argtypes = [ctypes.c_size_t]
    rate(1 << 30)
    run = loaded.MallocExtension_Internal_ProcessBackgroundActions
    threading.Thread(target=run, daemon=True).start()


def main():
    contexts, hold = int(sys.argv[1]), float(sys.argv[2])
    for release in sys.argv[3:]:
        {"each-second": release_each_second, "background": release_in_background}[release]()
    asyncio.run(burst(contexts, hold))
    gc.collect()
    print("dropped all", flush=True)
    time.sleep(hold)


main()
