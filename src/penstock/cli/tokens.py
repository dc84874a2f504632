"""`penstock tokens`: who may use the service, and for what."""

from __future__ import annotations

import sys
from typing import Any

import click

from penstock.access import Access, Scope, Token
from penstock.cli.opening import on_store, on_store_or_new
from penstock.cli.output import (
    Column,
    clean,
    console,
    facts,
    heading,
    now,
    output_option,
    plain,
    print_json,
    show_list,
)
from penstock.cli.settings import read_rate, told_setting
from penstock.cli.words import Duration, ago, when
from penstock.core.registry import ALL_TENANTS
from penstock.queue import Queue

OVERLAP_SECONDS = 86_400.0

service_option = click.option(
    "--service", is_flag=True, help="A token of the service itself, for all tenants, instead of --tenant's."
)
secret_output = click.option(
    "-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True,
    help="The secret (in a pipe it alone), or all there is to know with it.",
)  # fmt: skip


@click.group()
def tokens() -> None:
    """Make, list, rotate and revoke the tokens of the HTTP service."""


def _whose(queue: Queue, service: bool) -> str:
    return ALL_TENANTS if service else queue.tenant


@tokens.command("list")
@service_option
@output_option()
@on_store
async def list_(queue: Queue, /, service: bool, output: str) -> None:
    """List tokens; never their secrets, which nobody can look up."""
    at = now()
    columns = [
        Column("id", lambda token: token.id, whole=True),
        Column("name", lambda token: token.name),
        Column("scopes", lambda token: " ".join(token.scopes)),
        Column("last seen", lambda token: ago(token.last_seen_at, at) if token.last_seen_at else "never"),
        Column("expires", lambda token: ago(token.expires_at, at) if token.expires_at else "never"),
        Column("created", lambda token: when(token.created_at, at), wide=True),
        Column("by", lambda token: token.created_by, wide=True),
        Column("rate", lambda token: told_setting(token.rate), wide=True),
        Column("replaced by", lambda token: token.replaced_by, wide=True),
    ]
    found = await Access(queue.store).tokens(_whose(queue, service))
    show_list(found, output, columns, empty="no tokens yet: penstock tokens create NAME --scope …")


@tokens.command()
@click.argument("name")
@click.option(
    "--scope", "scopes", multiple=True, required=True, type=click.Choice([*map(str, Scope)]),
    help="What it allows; give it several times for several. admin allows everything.",
)  # fmt: skip
@click.option("--expires-in", type=Duration(), help="How long it is good: 90d. For ever unless given.")
@click.option(
    "--rate",
    metavar="N/TIME",
    callback=lambda ctx, param, text: text and read_rate("rate", text),
    help="Requests it may make: 100/s,burst=200.",
)
@service_option
@secret_output
@on_store_or_new
async def create(
    queue: Queue,
    /,
    name: str,
    scopes: tuple[str, ...],
    expires_in: float | None,
    rate: Any,
    service: bool,
    output: str,
) -> None:
    """Make a token and print its secret, once: nobody can look it up later.

    penstock tokens create shop --scope produce --scope work --expires-in 90d
    """
    token, secret = await Access(queue.store).create(
        _whose(queue, service), name, scopes, actor=queue.actor, expires_in=expires_in, rate=rate
    )
    _print_secret(token, secret, output)


@tokens.command()
@click.argument("id")
@click.option(
    "--overlap", type=Duration(), default=OVERLAP_SECONDS, show_default="24h",
    help="How long the old secret goes on beside the new one.",
)  # fmt: skip
@service_option
@secret_output
@on_store
async def rotate(queue: Queue, /, id: str, overlap: float, service: bool, output: str) -> None:
    """Make a token in the place of another, and print its secret, once. The old one goes on for a while."""
    token, secret = await Access(queue.store).rotate(
        _whose(queue, service), id, actor=queue.actor, overlap_seconds=overlap
    )
    _print_secret(token, secret, output)


@tokens.command()
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@click.option("--reason", help="Why; it is kept in the audit trail.")
@service_option
@on_store
async def revoke(queue: Queue, /, ids: tuple[str, ...], reason: str | None, service: bool) -> None:
    """End a token at once."""
    access = Access(queue.store)
    for id in ids:
        token = await access.revoke(_whose(queue, service), id, actor=queue.actor, reason=reason)
        click.echo(clean(f"{token.id} ({token.name}) is revoked"))


def _print_secret(token: Token, secret: str, output: str) -> None:
    """Alone in a pipe, so that it can go where it belongs without passing a screen."""
    if output == "json":
        print_json({**plain(token), "secret": secret})
    elif sys.stdout.isatty():
        screen = console()
        screen.print(heading(f"{token.name} {token.id}"))
        expires = None if token.expires_at is None else when(token.expires_at, now())
        screen.print(facts({"scopes": " ".join(token.scopes), "tenant": token.tenant, "expires": expires}))
        click.echo(f"\n{secret}\n")
        click.secho(
            "Keep it now: it cannot be shown again. PENSTOCK_TOKEN is where programs look for it.", dim=True
        )
    else:
        click.echo(secret)
