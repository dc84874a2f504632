"""Enqueue in your own transaction: the order and its e-mail are both there, or neither is.

    python examples/own_transaction.py

Your tables and Penstock's live in one database. Hand over the connection your transaction is open on, and the job is
part of it. This runs with asyncpg; psycopg and SQLAlchemy run as well where they are installed. With Django:

    with transaction.atomic():
        Order.objects.create(item="tea")
        send_receipt.options(conn=connection).sync.enqueue(item="tea")
"""

import asyncio
from importlib.util import find_spec

import asyncpg

from penstock import Penstock

app = Penstock()


@app.job(name="receipt.send", queue="receipts")
async def send_receipt(item: str) -> None:
    print(f"receipt for {item}")


class CardRefused(Exception):
    pass


async def order(url: str, item: str, *, card_is_good: bool = True) -> None:
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            await connection.execute("INSERT INTO example_orders VALUES ($1)", item)
            await send_receipt.options(conn=connection).enqueue(item=item)
            if not card_is_good:
                raise CardRefused  # the transaction is rolled back, and the job with it
    finally:
        await connection.close()


def order_with_psycopg(url: str, item: str) -> None:
    import psycopg

    with psycopg.connect(url) as connection:
        connection.execute("INSERT INTO example_orders VALUES (%s)", [item])
        send_receipt.options(conn=connection).sync.enqueue(item=item)


async def order_with_sqlalchemy(url: str, item: str) -> None:
    from sqlalchemy import text
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    engine = create_async_engine(url.replace("postgresql://", "postgresql+asyncpg://", 1))
    async with AsyncSession(engine) as session, session.begin():
        await session.execute(text("INSERT INTO example_orders VALUES (:item)"), {"item": item})
        await send_receipt.options(conn=session).enqueue(item=item)
    await engine.dispose()


async def main() -> None:
    async with app, asyncio.TaskGroup() as tasks:
        url = app.address.url  # PENSTOCK_URL, or that of the PostgreSQL Penstock has brought along
        await app.queue.queues()  # the first call makes Penstock's tables, if that database is its own
        connection = await asyncpg.connect(url)
        await connection.execute("CREATE TABLE IF NOT EXISTS example_orders (item text)")
        await connection.execute("TRUNCATE example_orders")

        await order(url, "tea")
        try:
            await order(url, "yacht", card_is_good=False)
        except CardRefused:
            print("no yacht: its order was rolled back")
        if find_spec("psycopg"):
            await asyncio.to_thread(order_with_psycopg, url, "coffee")
        if find_spec("sqlalchemy"):
            await order_with_sqlalchemy(url, "cake")

        orders = await connection.fetch("SELECT item FROM example_orders ORDER BY item")
        jobs = [job async for job in app.queue.find_all(type="receipt.send", status="queued")]
        print("orders:", ", ".join(row["item"] for row in orders))
        print(f"{len(orders)} orders, {len(jobs)} receipts to send")
        await connection.close()

        started = asyncio.get_running_loop().create_future()
        tasks.create_task(app.run_worker(on_start=started.set_result))
        for job in jobs:
            await app.handle(job.id).result(timeout=30)
        started.result().stop()


if __name__ == "__main__":
    asyncio.run(main())
