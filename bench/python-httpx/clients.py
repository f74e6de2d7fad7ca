"""The post's program, with a number of clients: RSS in MiB when all are open, and at the end."""
import asyncio, gc, sys, httpx


def rss():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) // 256


async def client():
    async with httpx.AsyncClient():
        await asyncio.sleep(3)


async def main():
    tasks = [asyncio.create_task(client()) for _ in range(int(sys.argv[1]))]
    await asyncio.sleep(0)
    while sum(task.done() for task in tasks) == 0:
        peak = rss()
        await asyncio.sleep(0.5)
    await asyncio.gather(*tasks)
    return peak


peak = asyncio.run(main())
gc.collect()
print(peak, rss())
