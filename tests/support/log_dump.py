"""Everything a state holds that can ever show, as bytes; run as a program, of the entries in a file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec

from penstock.core.machine import Machine
from penstock.stores.log.entry import read
from penstock.stores.log.state import State


def dumped(state: State) -> bytes:
    parts = state.parts
    return msgspec.json.encode(
        {
            **{tenant: _machine(one, state) for tenant, one in sorted(parts.machines.items())},
            "": [parts.now, parts.number, parts.name, parts.offices],
            "writers": [(writer.hex(), batch) for writer, batch in parts.writers.items()],
            "registry": [
                [(place, here) for place, here in sorted(parts.entries.items())],
                [(place, one) for place, one in sorted(parts.allowances.items())],
                [(place, one) for place, one in sorted(parts.insights.items())],
            ],
        }
    )


def _machine(machine: Machine, state: State) -> dict[str, Any]:
    ledger = machine.ledger
    return {
        "jobs": list(ledger.jobs.values()),
        "trails": [(subject, trail) for subject, trail in ledger.trails.items()],
        "told": [ledger.told_count, list(ledger.told)],
        "audited": list(ledger.audited),
        "schedules": machine.schedules(),
        "lanes": [(name, lane.settings, lane.counts, _used(lane.used(), state)) for name, lane in ledger.lanes.items()],
        "requests": [(key, one) for key, one in ledger.keys.requests.items()],
        "children": [[child.id for child in ledger.flow.children(parent)] for parent in ledger.jobs],
    }  # fmt: skip


def _used(used: Any, state: State) -> Any:
    """Without the keys of which nothing is known any more but their name."""
    full_until, turn, keys = used
    kept = [
        (key or "", use)
        for key, use in keys.items()
        if use.running or use.turn or (use.full_until is not None and use.full_until > state.time)
    ]
    return full_until, turn, sorted(kept, key=lambda one: one[0])


def main(path: str) -> None:
    state = State()
    for number, data in enumerate(msgspec.msgpack.decode(Path(path).read_bytes(), type=list[bytes]), 1):
        state.apply(number, read("it", number, data))
    sys.stdout.buffer.write(dumped(state))


if __name__ == "__main__":
    main(sys.argv[1])
