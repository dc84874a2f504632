"""The whole of it in one file: a function becomes a job, the job waits in a database, a worker runs it.

    python examples/quickstart.py

There is nothing to set up: without PENSTOCK_URL, `Penstock()` brings a PostgreSQL of its own, kept under ./.penstock.
"""

import asyncio

from penstock import Penstock

app = Penstock()


# Plain `def` works too; it then runs in a thread. Arguments travel as JSON, and are checked when a job is enqueued.
@app.job(name="email.send", queue="emails")
async def send_email(to: str, subject: str = "Welcome") -> dict[str, str]:
    print(f"sending {subject!r} to {to}")
    return {"sent_to": to}


async def main() -> None:
    async with app, asyncio.TaskGroup() as tasks:
        now = await send_email.enqueue(to="ada@example.com")
        later = await send_email.options(delay=1).enqueue(to="bob@example.com", subject="How is it going?")
        print("both jobs are safe in the database, and nothing has run yet")

        # A worker in this process, so that one file shows it all. Usually it is a process of its own that calls
        # `asyncio.run(app.run_worker())` and works until it is told to stop.
        started = asyncio.get_running_loop().create_future()
        tasks.create_task(app.run_worker(on_start=started.set_result))
        worker = await started

        print("result:", await now.result(timeout=30))
        print("result:", await later.result(timeout=30))
        worker.stop()


if __name__ == "__main__":
    asyncio.run(main())
