"""Work that computes runs in processes of its own: it uses all cores, and it can be stopped.

    python examples/cpu_bound.py

In a thread, long computations hold up everything else in the worker, and nothing can end them. A process can be killed when
it takes too long or too much memory, and the next job gets a fresh one.
"""

import asyncio
import os

from penstock import JobFailed, Penstock

app = Penstock()


@app.job(name="primes.count", queue="sums", runs="process", memory_mb=512, max_jobs_per_child=100)
def count_primes(below: int) -> dict[str, int]:
    found = [
        number for number in range(2, below) if all(number % by for by in range(2, int(number**0.5) + 1))
    ]
    return {"primes": len(found), "process": os.getpid()}


@app.job(name="sums.forever", queue="sums", runs="process", timeout=1, max_attempts=1)
def never_ends() -> None:
    while True:
        pass


async def main() -> None:
    async with app, asyncio.TaskGroup() as tasks:
        started = asyncio.get_running_loop().create_future()
        tasks.create_task(app.run_worker(on_start=started.set_result))

        endless = await never_ends.enqueue()
        for handle in [await count_primes.enqueue(below) for below in (1_000, 10_000, 50_000)]:
            result = await handle.result(timeout=60)
            place = "a process of its own" if result["process"] != os.getpid() else "the worker's process"
            print(f"{result['primes']} primes, counted in {place}")
        try:
            await endless.result(timeout=60)
        except JobFailed as failed:
            print(f"the endless sum is {failed.status}: {failed.error}")
        started.result().stop()


# A process that is started for jobs imports this file: only the one you started may run `main`.
if __name__ == "__main__":
    asyncio.run(main())
