"""Bring your own loop: lease jobs and settle them yourself, where a worker with handlers does not fit.

    python examples/own_loop.py

A lease is yours for a while. Settle the job before it runs out, or keep it alive. A worker that dies settles nothing: its
lease runs out, and somebody else gets the job.
"""

import asyncio
import json

from penstock import LeaseLost, Penstock

app = Penstock()


async def main() -> None:
    async with app:
        await app.enqueue("file.convert", {"path": "tea.png"}, queue="files")
        await app.enqueue("file.convert", {"path": "notes.txt"}, queue="files", max_attempts=1)
        slow = await app.enqueue("file.convert", {"path": "holiday.mov"}, queue="files")

        for leased in await app.lease("files", limit=10, lease_seconds=30):
            path = json.loads(leased.job.payload)["path"]
            try:
                match path.rpartition(".")[2]:
                    case "png":
                        await app.ack(leased, result={"converted": path})
                    case "mov":
                        async with app.keep_alive(leased):  # heartbeats, as long as the block runs
                            await asyncio.sleep(0.2)
                        await app.ack(leased, result={"converted": path})
                    case other:
                        await app.nack(leased, f"cannot convert .{other}")
            except LeaseLost:
                continue  # it is somebody else's by now; what was done here changes nothing
            job = await app.handle(leased.id).job()
            print(f"{path}: {job.status}{f' ({job.error})' if job.error else ''}")

        print("result:", await slow.result(timeout=30))


if __name__ == "__main__":
    asyncio.run(main())
