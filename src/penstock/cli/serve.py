"""`penstock serve` on the command line."""

from __future__ import annotations

import click

from penstock.cli.main import logging_options


@click.command()
@click.option(
    "--url",
    envvar="PENSTOCK_URL",
    help="The store: postgresql://…, file:…, s3://… or memory://; without it, the embedded server.",
)
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Where to listen; 0.0.0.0 for all of this machine."
)
@click.option(
    "--port",
    default=8080,
    show_default=True,
    type=click.IntRange(0, 65_535),
    help="0 takes any that is free.",
)
@click.option(
    "--token",
    envvar="PENSTOCK_TOKEN",
    help="An admin token of your own making; it is made if it is not there.",
)
@click.option(
    "--scheduler/--no-scheduler",
    default=True,
    show_default=True,
    help="Whether schedules may fire from here.",
)
@click.option(
    "--tenant-rate", metavar="N/SECONDS", help="Requests that each tenant may send, such as 1000/60."
)
@click.option(
    "--max-body",
    default=16,
    show_default=True,
    type=click.IntRange(1, 1024),
    help="Megabytes a request may have.",
)
@click.option(
    "--lake",
    envvar="PENSTOCK_LAKE",
    show_envvar=True,
    metavar="PATH",
    help="Where the lake is: jobs that have left the store are looked for in it.",
)
@click.option("--require-idempotency-key", is_flag=True, help="Take jobs only with an Idempotency-Key.")
@logging_options
def serve(
    url: str | None,
    host: str,
    port: int,
    token: str | None,
    scheduler: bool,
    tenant_rate: str | None,
    max_body: int,
    lake: str | None,
    require_idempotency_key: bool,
) -> None:
    """Serve the queue over HTTP: any language produces and works through it.

    Any number of instances may serve one store. The first token of an empty store is printed once. SIGTERM: nothing new is
    taken, waiting requests are let go, what is under way is answered.
    """
    from penstock.cli.serving import run
    from penstock.connecting import locate
    from penstock.core.limits import Rate

    rate = None
    if tenant_rate is not None:
        limit, _, seconds = tenant_rate.partition("/")
        try:
            rate = Rate(int(limit), per=float(seconds or 1))
        except ValueError:
            raise click.UsageError(
                "--tenant-rate is like 1000/60: so many requests in so many seconds"
            ) from None
    run(
        locate(url), host=host, port=port, token=token, scheduler=scheduler, tenant_rate=rate,
        most_bytes=max_body * 1_048_576, needs_idempotency_key=require_idempotency_key, lake=lake,
    )  # fmt: skip
