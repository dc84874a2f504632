"""What becomes of a job whose handler fails, or is not ready yet.

    python examples/retries.py

A handler that raises is tried again, later each time, until its attempts are used up. It can also say what it wants.
"""

import asyncio

from penstock import Discard, GiveUp, JobContext, JobFailed, Penstock, Retry, RetryAfter, Snooze

app = Penstock()


# By default the waits grow to hours. These are short, so that the example ends soon.
@app.job(name="weather.fetch", max_attempts=4, retry=Retry.exponential(base=0.1, cap=5))
async def fetch_weather(city: str, ctx: JobContext) -> str:
    if ctx.attempt < 3:
        raise ConnectionError(f"no route to the weather of {city}")
    return "sunny"


@app.job(name="card.charge", max_attempts=5)
async def charge_card(number: str, ctx: JobContext) -> str:
    if number == "stolen":
        raise GiveUp("the bank says never to ask again")  # dead at once; somebody should look at it
    if number == "closed":
        raise Discard("the customer has left")  # cancelled: there is nothing left to do
    if ctx.attempt == 1:
        raise RetryAfter(0.2, "the bank asks us to slow down")  # counts as an attempt, with a wait of its own
    return "paid"


@app.job(name="video.publish")
async def publish(path: str, ctx: JobContext) -> str:
    # A snooze is no failure: it does not use up an attempt, and the job may be snoozed as often as it likes.
    if ctx.fence < 3:
        raise Snooze(0.2)
    return f"published {path} in attempt {ctx.attempt}, after 2 snoozes"


async def main() -> None:
    async with app, asyncio.TaskGroup() as tasks:
        started = asyncio.get_running_loop().create_future()
        tasks.create_task(app.run_worker(on_start=started.set_result))

        handles = [
            await fetch_weather.enqueue("Lisbon"),
            await charge_card.enqueue("good"),
            await charge_card.enqueue("stolen"),
            await charge_card.enqueue("closed"),
            await publish.enqueue("cats.mp4"),
        ]
        for handle in handles:
            try:
                print("result:", await handle.result(timeout=30))
            except JobFailed as failed:
                print(f"{failed.status}, because it was {failed.cause}: {failed.error}")

        # Every attempt is kept: when it ran, where, how it ended, and what it logged.
        history = await app.queue.history(handles[0].id)
        for attempt in history.attempts:
            print(
                f"  attempt {attempt.number}: {attempt.outcome} {(attempt.error or '').partition(chr(10))[0]}"
            )
        started.result().stop()


if __name__ == "__main__":
    asyncio.run(main())
