"""One customer's ten thousand jobs must not stand in another's way.

    python examples/customer_limits.py

A job's `key` says whose it is. Limits per key hold for the whole fleet, not per worker; with `fair`, customers take turns.
"""

import asyncio
from collections import Counter

from penstock import Penstock

app = Penstock()
running: Counter[str] = Counter()
most: Counter[str] = Counter()
order: list[str] = []


@app.job(name="shop.sync", queue="syncs", max_concurrency=4, max_concurrency_per_key=1, fair=True)
async def sync_shop(customer: str, page: int) -> None:
    order.append(customer)
    running[customer] += 1
    most[customer] = max(most[customer], running[customer])
    await asyncio.sleep(0.05)
    running[customer] -= 1


async def main() -> None:
    async with app, asyncio.TaskGroup() as tasks:
        big = [sync_shop.options(key="big").new("big", page) for page in range(12)]
        small = [sync_shop.options(key="small").new("small", page) for page in range(3)]
        handles = await app.enqueue_many([*big, *small])  # the small customer comes last

        # Limits that code declares are set when a worker starts. Whoever runs the system may change them later,
        # and then they stay changed: await app.queue.configure("syncs", max_concurrency_per_key=2)
        started = asyncio.get_running_loop().create_future()
        tasks.create_task(app.run_worker(on_start=started.set_result))
        for handle in handles:
            assert not isinstance(handle, Exception)
            await handle.result(timeout=30)
        started.result().stop()

    print("in this order:", " ".join(order))
    print("at most at once:", ", ".join(f"{customer} {times}" for customer, times in sorted(most.items())))
    print(f"the small customer was done after {len(order) - order[::-1].index('small')} of {len(order)} jobs")


if __name__ == "__main__":
    asyncio.run(main())
