"""Jobs at the times of a cron expression, in a time zone of your choice.

    python examples/cron.py

Each fire time makes one job, however many processes look at the clock.
"""

import asyncio

from penstock import Penstock
from penstock.testkit import TestKit

app = Penstock()


# `missed` says what becomes of fire times that pass while nothing runs: one job for all of them, all, or skip them.
@app.cron("0 9 * * 1-5", tz="Europe/Paris", missed="one", name="daily-report", args={"format": "pdf"})
@app.job(name="report.write", queue="reports")
async def write_report(format: str = "html") -> None:
    print(f"  writing the report as {format}")


@app.cron("*/15 * * * *", name="clean-up")
async def clean_up() -> None:
    print("  cleaning up")


async def main() -> None:
    async with app:
        for name, schedule in app.schedules.items():
            put = await app.queue.put_schedule(name, **schedule)
            print(f"{name}: {put.cron} ({put.tz}), next at {put.next_fire_at:%Y-%m-%d %H:%M} UTC")
        await app.queue.pause_schedule("clean-up", "while we move to another disk")
        print("fired now:", [fired.name for fired in await app.queue.fire_due()])
        for name in app.schedules:
            await app.queue.drop_schedule(name)

    # Nobody wants to wait until nine. In a test the clock is yours; this one starts on Thursday, 1 January 2026, at noon.
    with TestKit() as kit:
        kit.use(app)
        for hours in (21, 24, 24, 24):
            kit.clock.advance(hours=hours)
            fired = [each.name for each in kit.fire_due()]
            print(f"{kit.clock.now():%A %H:%M} UTC: {', '.join(sorted(fired))}")
            await kit.drain()


if __name__ == "__main__":
    asyncio.run(main())
