"""`penstock dev`: store, service, worker and scheduler in one command, for a developer's own machine."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from penstock.cli.reloading import Saved
from penstock.cli.worker import WATCHED
from penstock.connecting import Address, connect

DEMO = "penstock.cli.dev_app:app"
LOOK_SECONDS = 0.4
END_SECONDS = 8.0


def run(
    target: str | None,
    where: Address | None,
    *,
    data: Path,
    host: str,
    port: int,
    token: str | None,
    worker: bool,
) -> None:
    """Run everything until Ctrl-C; afterwards nothing is left running."""
    with ThreadPoolExecutor(1) as pool:
        # The database starts while the web framework is imported: each takes most of a second.
        locating = pool.submit(_locate, where, data)
        from penstock.cli.serving import event_loop
        from penstock.server.run import bind

        listening = bind(host, port)
        here = locating.result()
    try:
        with asyncio.Runner(loop_factory=event_loop()) as runner:
            runner.run(_dev(target, here, data, listening, token, worker))
    finally:
        here.close()


def _locate(where: Address | None, data: Path) -> Address:
    if where is not None:
        return where
    from penstock.stores.postgres.embedded import start

    server = start(data)
    return Address(server.url, migrates=True, close=server.close)


async def _dev(
    target: str | None, here: Address, data: Path, listening: Any, token: str | None, worker: bool
) -> None:
    from penstock.cli.serving import ensure_token, service_on, until_signal
    from penstock.server.run import address

    stopping = until_signal()
    secret = token or _kept_secret(data)
    async with connect(here.url, actor="service", migrates=here.migrates) as queue:
        await ensure_token(queue, secret)
        async with service_on(queue, listening, scheduler=True) as service:
            code = await service.sessions.code(secret)
            _greet(address(listening), secret, code, here, data, target, worker)
            async with (
                _working(target or DEMO, here.url, reloads=target is not None) if worker else _nobody()
            ):
                await stopping.wait()
                _say("\nending …")


def _kept_secret(data: Path) -> str:
    """The token of this folder, the same each time: a developer's own, readable by nobody else."""
    from penstock.cli.serving import new_secret

    file = data / "dev-token"
    try:
        return file.read_text().strip()
    except FileNotFoundError:
        data.mkdir(parents=True, exist_ok=True)
        secret = new_secret()
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as out:
            out.write(secret + "\n")
        return secret


def _greet(
    url: str, secret: str, code: str, here: Address, data: Path, target: str | None, worker: bool
) -> None:
    store = "embedded PostgreSQL in " + str(data) if here.migrates else "the store of PENSTOCK_URL"
    handlers = (
        "none (--no-worker)"
        if not worker
        else target or "demo handlers: hello, slow, flaky, and tick every minute"
    )
    type, queue = ("hello", "default") if target is None else ("TYPE", "QUEUE")
    elsewhere = "" if data == Path(".penstock") or not here.migrates else f"PENSTOCK_URL={here.url} "
    lines = [
        f"Penstock is up at {url}        (Ctrl-C ends it all)",
        "",
        f"  open     {url}/ui/#code={code}",
        "           (logs you in once; later, or in another browser, with the token)",
        f"  token    {secret}",
        f"  store    {store}",
        f"  worker   {handlers}",
        f"  API      {url}/docs",
        "",
        "In another terminal, in this folder:",
        "",
        f'  {elsewhere}penstock enqueue {type} \'{{"name": "Ada"}}\' --queue {queue} --wait',
        f"  {elsewhere}penstock jobs list",
        f"  {elsewhere}penstock top",
        "",
        "or from any language:",
        "",
        f'  curl {url}/v1/jobs -H \'Authorization: Bearer {secret}\' -d \'{{"type": "{type}", "queue": "{queue}"}}\'',
        "",
    ]
    print("\n".join(lines), flush=True)


# ── The worker ────────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def _nobody() -> AsyncIterator[None]:
    yield


@asynccontextmanager
async def _working(target: str, url: str, *, reloads: bool) -> AsyncIterator[None]:
    """A worker process while the block runs; with `reloads`, a new one whenever a file is saved."""
    worker = DevWorker(target, url)
    await worker.start()
    watching = asyncio.create_task(worker.watch(Saved(Path.cwd()) if reloads else None))
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.wait([watching])
        await worker.end()


class DevWorker:
    """The worker process of the moment."""

    def __init__(self, target: str, url: str) -> None:
        self._target = target
        self._url = url
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        # In a session of its own, so that Ctrl-C reaches it through us, once; it ends with its standard input, and so with us.
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "penstock", "worker", self._target, "--grace", "3", "--no-scheduler",
            "--log-level", "warning", "--log-format", "text",
            stdin=subprocess.PIPE,
            env={**os.environ, "PENSTOCK_URL": self._url, WATCHED: "0"},
            start_new_session=True,
        )  # fmt: skip

    async def watch(self, saved: Saved | None) -> None:
        """Start it again when the code was saved; if there is no code to save, when it has crashed."""
        is_known = False
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if saved is not None and await asyncio.to_thread(saved.any):
                _say("saved: the worker starts again")
                await self.end()
                await self.start()
                is_known = False
            elif self._process is not None and self._process.returncode is not None and not is_known:
                is_known = saved is not None
                _say(
                    f"the worker ended with {self._process.returncode}; it starts again"
                    + (" when you save" if is_known else "")
                )
                if not is_known:
                    await self.start()

    async def end(self) -> None:
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(process.wait(), END_SECONDS)
            except TimeoutError:
                process.kill()
                await process.wait()
        assert process.stdin is not None
        process.stdin.close()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
