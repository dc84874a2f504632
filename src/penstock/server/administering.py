"""Tokens and the audit log."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from penstock.access import Scope, Token
from penstock.core import bounds
from penstock.core.errors import InvalidInput
from penstock.server.operation import Call, Operation
from penstock.server.wire import AuditAnswer, RotateRequest, TokenRequest, audited_answer


class NewTokenAnswer(Struct, frozen=True):
    """A token and its secret, which is shown this once."""

    token: Token
    secret: str


class TokensAnswer(Struct, frozen=True):
    tokens: list[Token]


class AuditQuery(Struct, frozen=True, forbid_unknown_fields=True):
    before: Annotated[str, Meta(min_length=1, max_length=100)] | UnsetType = UNSET
    """The `next` of the page before."""
    limit: Annotated[int, Meta(ge=1, le=bounds.MOST_LISTED)] = 100


async def create_token(call: Call) -> NewTokenAnswer:
    """Make a token of this tenant. Its secret is in this answer and nowhere else."""
    body: TokenRequest = call.body
    token, secret = await call.service.access.create(
        call.caller.tenant, body.name, body.scopes, actor=call.caller.queue.actor, expires_in=body.expires_in,
        rate=body.rate,
    )  # fmt: skip
    _never_store(call)
    return NewTokenAnswer(token, secret)


async def list_tokens(call: Call) -> TokensAnswer:
    return TokensAnswer(await call.service.access.tokens(call.caller.tenant))


async def rotate_token(call: Call) -> NewTokenAnswer:
    """A new token in the place of one, which goes on beside it for `overlap_seconds`."""
    token, secret = await call.service.access.rotate(
        call.caller.tenant,
        call.path["token"],
        actor=call.caller.queue.actor,
        overlap_seconds=call.body.overlap_seconds,
    )
    _never_store(call)
    return NewTokenAnswer(token, secret)


async def revoke_token(call: Call) -> None:
    """From within seconds on, nobody gets in with it, on any instance."""
    await call.service.access.revoke(call.caller.tenant, call.path["token"], actor=call.caller.queue.actor)


async def get_audit(call: Call) -> AuditAnswer:
    """Every change made by a person or a token, newest first."""
    before = None if call.query.before is UNSET else call.query.before
    if before is not None and not before.isascii():
        raise InvalidInput("before", "be the `next` of another page", before)
    page = await call.service.store.audit(call.caller.tenant, before=before, limit=call.query.limit)
    return AuditAnswer([audited_answer(line) for line in page.lines], page.next)


def _never_store(call: Call) -> None:
    call.headers["Cache-Control"] = "no-store"


_NO_TOKEN = {404: "No such token"}

OPERATIONS = (
    Operation("POST", "/v1/tokens", create_token, "Make a token", NewTokenAnswer, Scope.ADMIN, TokenRequest, status=201,
              example={"name": "ci", "scopes": ["produce"], "expires_in": 7776000}, tag="Tokens"),
    Operation("GET", "/v1/tokens", list_tokens, "List tokens", TokensAnswer, Scope.ADMIN, tag="Tokens"),
    Operation("POST", "/v1/tokens/{token}/rotate", rotate_token, "Rotate a token", NewTokenAnswer, Scope.ADMIN, RotateRequest,
              body_is_optional=True, status=201, also=_NO_TOKEN, example={"overlap_seconds": 3600}, tag="Tokens"),
    Operation("DELETE", "/v1/tokens/{token}", revoke_token, "Revoke a token", None, Scope.ADMIN, status=204, also=_NO_TOKEN,
              tag="Tokens"),
    Operation("GET", "/v1/audit", get_audit, "Read who changed what", AuditAnswer, (Scope.READ, Scope.OPERATE),
              query=AuditQuery, tag="Operate"),
)  # fmt: skip
