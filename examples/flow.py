"""Jobs that wait for other jobs: fetch a page, look at its parts side by side, then add it all up.

python examples/flow.py

           ┌─ count (a) ─┐
fetch ─────┼─ count (e) ─┼──── report
           └─ count (i) ─┘
"""

import asyncio

from penstock import JobContext, JobFailed, Penstock

app = Penstock()
broken = True


@app.job(name="page.fetch")
async def fetch(url: str) -> str:
    print(f"fetching {url}")
    return "a penstock is the gate that lets water out of a reservoir"


@app.job(name="letters.count")
async def count(letter: str, ctx: JobContext) -> dict[str, int]:
    [page] = ctx.parents  # the jobs it waited for, with their results
    return {letter: page.result.count(letter)}


@app.job(name="report.write", max_attempts=1)
async def report(ctx: JobContext) -> str:
    if broken:
        raise OSError("the printer is on fire")
    return ", ".join(f"{letter} {times}×" for part in ctx.parents for letter, times in part.result.items())


async def main() -> None:
    global broken
    async with app, asyncio.TaskGroup() as tasks:
        flow = app.flow()
        page = flow.add(fetch.new("https://example.com"))
        parts = [flow.add(count.new(letter), after=page) for letter in "aei"]
        last = flow.add(report.new(), after=parts)
        run = await flow.enqueue()  # all of it in one call

        started = asyncio.get_running_loop().create_future()
        tasks.create_task(app.run_worker(on_start=started.set_result))
        try:
            await run.results(timeout=30)
        except JobFailed as failed:
            print(f"the report is {failed.status}: {(failed.error or '').partition(chr(10))[0]}")

        # A failed flow goes on where it failed: the page is not fetched a second time.
        broken = False
        await run.retry("the fire is out")
        print("report:", (await run.results(timeout=30))[last.id])
        started.result().stop()


if __name__ == "__main__":
    asyncio.run(main())
