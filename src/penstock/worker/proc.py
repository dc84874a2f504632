"""The standard `process_*` metrics, read from /proc where there is one."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Literal

Row = tuple[str, str, float, Literal["gauge", "counter"]]


def readings(proc: Path = Path("/proc")) -> list[Row]:
    """Name, help, value and kind of each; without /proc, only what every POSIX system tells."""
    used = os.times()
    rows: list[Row] = [
        ("process_cpu_seconds_total", "User and system CPU time spent.", used.user + used.system, "counter"),
    ]
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY:
        rows.append(("process_max_fds", "Most file descriptors that may be open.", most, "gauge"))
    try:
        # The second field is the program's name in brackets, and may hold anything.
        stat = (proc / "self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        booted = (proc / "stat").read_text(encoding="utf-8").partition("\nbtime ")[2].split()[0]
        open_files = len(os.listdir(proc / "self/fd"))
    except (OSError, IndexError):
        return rows
    rows += [
        ("process_virtual_memory_bytes", "Virtual memory.", int(stat[20]), "gauge"),
        ("process_resident_memory_bytes", "Resident memory.", int(stat[21]) * resource.getpagesize(), "gauge"),
        ("process_start_time_seconds", "Start time since the epoch.", int(booted) + int(stat[19]) / os.sysconf("SC_CLK_TCK"), "gauge"),
        ("process_open_fds", "Open file descriptors.", open_files, "gauge"),
    ]  # fmt: skip
    return rows


def resident_bytes(proc: Path = Path("/proc")) -> int | None:
    """What this process has in memory; None where there is no /proc."""
    try:
        return int((proc / "self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()
    except (OSError, IndexError):
        return None
