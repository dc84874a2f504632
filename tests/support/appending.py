"""A process that appends to a tape for ever, and says which of its entries were confirmed at which number.

python tests/support/appending.py URL NAME
"""

from __future__ import annotations

import asyncio
import os
import sys
from itertools import count

from penstock.stores.log.backings import Tape, open_backing

CALLERS = 4


async def append(tape: Tape, name: str, caller: int) -> None:
    for number in count():
        entry = f"{name}.{caller}.{number}"
        place = await tape.append(entry.encode())
        os.write(1, f"{entry} {place}\n".encode())  # at once: what is told must not die in a buffer


async def main(url: str, name: str) -> None:
    backing = open_backing(url)
    await backing.ready()
    tape = backing.tape("s00")
    await asyncio.gather(*(append(tape, name, caller) for caller in range(CALLERS)))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
