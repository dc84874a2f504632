"""How commands get hold of Spark, and how they let go of it when a person has had enough."""

from __future__ import annotations

import logging
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import click

from penstock.cli.exits import Exit, Refused
from penstock.core.errors import PenstockError

MASTERS = re.compile(r"local(\[(\*|[1-9]\d*)(, *\d+)?\])?|local-cluster\[.+\]|(spark|k8s|mesos)://.+|yarn")


@contextmanager
def on_spark(master: str | None, remote: str | None) -> Iterator[Any]:
    """A session on the Spark that is named, or on this machine; what keeps it from starting is told in a line."""
    from penstock.lake.session import session

    if master is not None and not MASTERS.fullmatch(master):
        raise click.UsageError(
            f"--master must be local[*], local[4], spark://host:7077, yarn or k8s://…; got {master!r}"
        )
    logging.getLogger("py4j").setLevel(logging.WARNING)
    try:
        spark = session(master, remote, app_name="penstock lake")
    except PenstockError:
        raise
    except Exception as error:  # Py4J's, gRPC's and PySpark's own, which have nothing else in common
        lines = str(error).splitlines() or [""]
        # Behind what was called comes, as `: java.lang.Exception: why`, what was wrong with it.
        [said, *_] = [*(line[2:] for line in lines if line.startswith(": ")), lines[0]]
        where = f" on {remote or master}" if remote or master else ""
        raise Refused(f"Spark did not start{where}: {type(error).__name__}: {said}", Exit.FAILED) from error
    with _stopped_at_once() as stopped:
        try:
            yield spark
        except Exception:
            if stopped.is_set():
                raise Refused(
                    "stopped; what was not committed counts for nothing, and nothing is lost: run it again",
                    Exit.FAILED,
                ) from None
            raise
        finally:
            if not stopped.is_set():
                spark.stop()


@contextmanager
def _stopped_at_once() -> Iterator[threading.Event]:
    """Set by Ctrl-C, which ends Spark's JVM: whoever waits for it fails, wherever that is, and a lake minds no kill.

    PySpark's own way is to ask the JVM, from within whatever is being asked of it: that ends in pages of traces.
    """
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    process: Any = getattr(SparkContext._gateway, "proc", None)
    stopped = threading.Event()

    def end() -> None:
        with suppress(Exception):
            context.setLogLevel("OFF")  # else it tells of all that it could not bring to its end
        process.terminate()

    def stop(*_: object) -> None:
        if process is None or stopped.is_set():
            raise KeyboardInterrupt  # Spark is elsewhere; or we were asked twice
        stopped.set()
        logging.disable(logging.CRITICAL)  # each thread that waits for the JVM would tell of it
        # In a thread, which has a connection of its own: that of this one is in the middle of something.
        threading.Thread(target=end, daemon=True).start()

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield stopped
    finally:
        signal.signal(signal.SIGINT, before)
        if stopped.is_set():
            logging.disable(logging.NOTSET)


@contextmanager
def until_stopped() -> Iterator[threading.Event]:
    """Set by the first signal to end; what is at work is brought to its end."""
    stop = threading.Event()
    before = {one: signal.signal(one, lambda *_: stop.set()) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
