"""A company's jobs, made up: whose queues there are, what runs in them, how often it fails, and what went wrong when."""

from __future__ import annotations

from msgspec import Struct

MINUTE = 60_000_000
HOUR = 60 * MINUTE
DAY = 24 * HOUR


LARGEST = "acme"
"""Whose jobs are most of the fleet's."""


class Type(Struct, frozen=True):
    """A kind of job: its share in its queue, its usual run time with the width of its tail, and how often it fails."""

    name: str
    weight: float
    median_ms: float
    sigma: float = 0.8
    fails: float = 0.01
    error: str = "upstream"


class Lane(Struct, frozen=True):
    """One tenant's queue, and how far its workers reach: 1.0 is just as much as the peak hour brings."""

    tenant: str
    queue: str
    share: float
    types: tuple[Type, ...]
    reach: float = 1.6
    keys: int = 0
    """How many customers its jobs are for; none if zero."""
    in_flows: float = 0.0
    """The share of its jobs that hang together: some that fetch, one that merges, one that sends."""
    burst: int = 1
    """How many jobs come at once, on average: a campaign, an album, an import."""
    incident: str | None = None
    """What goes wrong in it once: `mail` server down, bad `deploy`."""


class Fires(Struct, frozen=True):
    """A schedule: every so often, from so long after midnight on."""

    tenant: str
    queue: str
    name: str
    type: str
    every: int
    offset: int = 0


FETCH = Type("report.fetch", 0.0, 4_500, 0.7, 0.02, "timeout")
MERGE = Type("report.merge", 0.0, 12_500, 0.5, 0.005, "key")
SEND = Type("report.send", 0.0, 1_500, 0.6, 0.005, "smtp")

LANES = (
    Lane("acme", "default", 0.22, (
        Type("user.welcome", 3, 600), Type("user.sync", 4, 1_300, 0.9, 0.012, "timeout"), Type("cache.warm", 2, 400),
        Type("audit.write", 3, 175, 0.5, 0.001, "database"), Type("clean.sessions", 0.2, 20_000, 0.6, 0.004, "database"),
    ), keys=400),
    Lane("acme", "mail", 0.2, (
        Type("mail.send", 6, 1_050, 0.7, 0.008, "smtp"), Type("mail.digest", 1, 7_000, 0.7, 0.01, "smtp"),
        Type("mail.bounce", 0.5, 450, 0.5, 0.002, "key"),
    ), keys=400, burst=12, incident="mail"),
    Lane("acme", "images", 0.12, (
        Type("image.resize", 5, 4_250, 0.9, 0.006, "decode"), Type("image.thumbnail", 6, 1_200, 0.6, 0.004, "decode"),
        Type("video.transcode", 0.15, 95_000, 1.1, 0.03, "killed"),
    ), reach=1.9, burst=5, incident="deploy"),
    Lane("acme", "reports", 0.03, (Type("report.daily", 1, 30_000, 0.9, 0.01, "key"),), in_flows=0.7, reach=2.5),
    Lane("acme", "billing", 0.04, (
        Type("invoice.make", 4, 2_100, 0.6, 0.004, "database"), Type("card.charge", 3, 5_500, 0.8, 0.03, "card"),
        Type("ledger.close", 0.05, 30_000, 0.7, 0.01, "database"),
    ), keys=250, reach=2.5),
    Lane("acme", "webhooks", 0.1, (
        Type("webhook.deliver", 8, 1_650, 1.2, 0.06, "webhook"), Type("webhook.verify", 1, 750, 0.6, 0.02, "webhook"),
    ), keys=250, reach=2.0, burst=3),
    Lane("globex", "default", 0.09, (
        Type("order.place", 4, 900, 0.6, 0.006, "database"), Type("order.ship", 2, 1_750, 0.8, 0.012, "timeout"),
        Type("stock.count", 1, 4_500, 0.7, 0.01, "database"),
    ), keys=120),
    Lane("globex", "mail", 0.06, (Type("mail.send", 4, 1_150, 0.7, 0.008, "smtp"), Type("mail.receipt", 4, 950)), keys=120),
    Lane("globex", "exports", 0.02, (
        Type("export.csv", 3, 45_000, 1.2, 0.015, "timeout"), Type("export.pdf", 2, 17_500, 0.9, 0.01, "key"),
    ), reach=2.2),
    Lane("globex", "search", 0.06, (
        Type("index.update", 8, 475, 0.6, 0.005, "upstream"), Type("index.rebuild", 0.02, 120_000, 0.8, 0.05, "killed"),
    ), reach=1.9),
    Lane("initech", "default", 0.03, (Type("task.run", 3, 3_500, 0.9, 0.02, "timeout"), Type("task.check", 1, 1_000))),
    # The slow tenant: long jobs, and not quite the workers that its mornings need.
    Lane("initech", "imports", 0.03, (
        Type("import.rows", 3, 37_500, 1.3, 0.03, "rows"), Type("import.map", 1, 14_000, 0.8, 0.02, "rows"),
    ), reach=0.85, burst=4),
)  # fmt: skip

SCHEDULES = (
    Fires("acme", "default", "clean-sessions", "clean.sessions", HOUR, 5 * MINUTE),
    Fires("acme", "reports", "morning-report", "report.daily", DAY, 6 * HOUR),
    Fires("globex", "search", "index-rebuild", "index.rebuild", DAY, 2 * HOUR),
    Fires("globex", "default", "stock-count", "stock.count", 15 * MINUTE),
)

_FRAMES = {
    "smtp": (("acme/mail.py", 41, "send", "smtp.sendmail(sender, to, text)"), ("smtplib.py", 901, "sendmail", "raise")),
    "refused": (("acme/mail.py", 39, "send", "smtp.connect(host)"), ("socket.py", 836, "create_connection", "raise")),
    "type": (("acme/images.py", 77, "resize", "scale(image, width)"), ("acme/pixels.py", 18, "scale", "return w / h")),
    "timeout": (("acme/http.py", 58, "get", "return await session.get(url)"), ("asyncio/timeouts.py", 115, "__aexit__", "raise")),
    "database": (("acme/db.py", 22, "execute", "await connection.execute(query)"),),
    "decode": (("acme/images.py", 64, "load", "Image.open(path)"),),
    "key": (("acme/reports.py", 130, "merge", "row[column]"),),
    "card": (("acme/billing.py", 88, "charge", "self.bank.charge(card)"),),
    "webhook": (("acme/webhooks.py", 31, "deliver", "answer.raise_for_status()"),),
    "rows": (("initech/imports.py", 203, "row", "return int(cell)"),),
    "upstream": (("acme/http.py", 61, "get", "answer.raise_for_status()"),),
}  # fmt: skip

_SAID = {
    "smtp": "SMTPRecipientsRefused: {{'user{n}@example.com': (550, b'no such user {n}')}}",
    "refused": "ConnectionRefusedError: [Errno 111] Connect call failed ('10.2.0.{small}', 587)",
    "type": "TypeError: unsupported operand type(s) for /: 'int' and 'NoneType'",
    "timeout": "TimeoutError: no answer from https://api{small}.example.com/v1/users/{n} within 30.0 s",
    "database": "asyncpg.exceptions.DeadlockDetectedError: deadlock detected: process {n} waits for transaction {m}",
    "decode": "UnidentifiedImageError: cannot identify image file '/var/spool/images/{hex}.jpg'",
    "key": "KeyError: 'column_{small}'",
    "card": "CardDeclined: card of customer {n} was declined with code {small}",
    "webhook": "HTTPStatusError: 503 Service Unavailable for https://hooks.customer{small}.example.com/in/{hex}",
    "rows": "ValueError: row {n}: invalid literal for int() with base 10: 'n/a'",
    "upstream": "HTTPStatusError: 502 Bad Gateway from 10.4.{small}.17:8080 after {m} ms",
    "killed": "ProcessKilled: process {n} ended by signal 9",
    "lost": "lease lost: worker {worker} neither settled the job nor sent a heartbeat in time",
}


def error_text(kind: str, n: int, worker: str) -> str:
    """An error as workers tell it: what it is first, then where it came from."""
    said = _SAID[kind].format(
        n=n, m=n * 7 % 90_001, small=n % 23, hex=f"{n * 2_654_435_761 % 2**48:012x}", worker=worker
    )
    frames = _FRAMES.get(kind)
    if frames is None:
        return said
    trace = "".join(
        f'  File "/srv/app/{path}", line {line}, in {name}\n    {code}\n' for path, line, name, code in frames
    )
    return f"{said}\n\nTraceback (most recent call last):\n{trace}{said}"
