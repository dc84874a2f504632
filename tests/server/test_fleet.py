"""Two services and three workers, each a process of its own, on one PostgreSQL."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx

from penstock import connect
from penstock.access import Access
from support.postgres import emptied, server_url

TESTS = Path(__file__).parents[1]
SECRET = "pst_a-token-for-the-fleet-of-tests"
LONG = 60.0


@contextmanager
def process(*command: str, **env: str) -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen(
        [sys.executable, "-m", "penstock", *command],
        env={**os.environ, "PYTHONPATH": str(TESTS), **env},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield child
    finally:
        if child.poll() is None:
            child.send_signal(signal.SIGTERM)
        try:
            child.communicate(timeout=LONG)
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()
            raise


def said(child: subprocess.Popen[str], pattern: str) -> str:
    """Wait for a line of its log; what comes after is read and dropped, so that it never blocks."""
    assert child.stderr is not None
    for line in child.stderr:
        if found := re.search(pattern, line):
            threading.Thread(target=child.stderr.read, daemon=True).start()
            return found[1]
    raise AssertionError(f"it ended with {child.wait()} and never said {pattern}")


async def test_a_fleet_does_every_job_once(tmp_path: Path) -> None:
    await emptied()
    async with connect(server_url()) as queue:
        await Access(queue.store).create("default", "fleet", ["admin"], actor="tests", secret=SECRET)
    with ExitStack() as stack:
        services = [
            stack.enter_context(process("serve", "--port", "0", PENSTOCK_URL=server_url())) for _ in range(2)
        ]
        urls = [said(one, r"serving on (http://[\d.:]+)") for one in services]
        # One worker beside the database, two through a service each: the same program.
        for url in [server_url(), *urls]:
            stack.enter_context(
                process(
                    "worker",
                    "support.worker_app:app",
                    "--concurrency",
                    "5",
                    PENSTOCK_URL=url,
                    PENSTOCK_TOKEN=SECRET,
                )
            )
        headers = {"Authorization": f"Bearer {SECRET}"}
        async with (
            httpx.AsyncClient(base_url=urls[0], headers=headers, timeout=LONG) as one,
            httpx.AsyncClient(base_url=urls[1], headers=headers, timeout=LONG) as two,
        ):
            made = await asyncio.gather(
                *(
                    (one, two)[n % 2].post("/v1/jobs", json={"type": "quick", "payload": {"n": n}})
                    for n in range(150)
                )
            )
            ids = [answer.json()["id"] for answer in made]
            results = await asyncio.gather(
                *((two, one)[n % 2].get(f"/v1/jobs/{id}/result?wait=50") for n, id in enumerate(ids))
            )
            assert [answer.json()["status"] for answer in results] == ["succeeded"] * 150
            trails = await asyncio.gather(*(one.get(f"/v1/jobs/{id}/attempts") for id in ids))
            attempts = [trail.json()["attempts"] for trail in trails]
            assert [len(each) for each in attempts] == [1] * 150
            workers = (await one.get("/metrics")).text
            assert 'penstock_workers{tenant="default"}' in workers
            # A token revoked at one service is of no use at the other within seconds.
            token = (await one.post("/v1/tokens", json={"name": "brief", "scopes": ["read"]})).json()
            brief = {"Authorization": f"Bearer {token['secret']}"}
            assert (await two.get("/v1/jobs", headers=brief)).status_code == 200
            await one.delete(f"/v1/tokens/{token['token']['id']}")
            async with asyncio.timeout(20):
                while (await two.get("/v1/jobs", headers=brief)).status_code == 200:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
        for service in services:  # a waiting request does not keep it
            service.send_signal(signal.SIGTERM)
        assert [service.wait(LONG) for service in services] == [0, 0]
