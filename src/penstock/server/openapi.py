"""The OpenAPI document, made from the operations themselves."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Annotated, Any

import msgspec
from msgspec import Meta

import penstock
from penstock.access import Scope
from penstock.insights import QUESTIONS
from penstock.server.operation import Operation
from penstock.server.problems import MEDIA_TYPE, Problem
from penstock.server.wire import Cursor, Id, Key, Name, TokenId

_TEMPLATE = "#/components/schemas/{name}"
_PATH_PARAMETERS: dict[str, tuple[Any, str]] = {
    "id": (Id, "Its id: a UUID in lower case."),
    "queue": (Name, "A queue's name."),
    "name": (Name, "A schedule's name."),
    "table": (Annotated[str, Meta(extra_json_schema={"enum": sorted(QUESTIONS)})], "What to ask for."),
    "fingerprint": (Annotated[str, Meta(pattern="^[0-9a-f]{16}$")], "A failure's fingerprint."),
    "worker": (Annotated[str, Meta(pattern="^[0-9a-f]{32}$")], "A worker's id; not its name."),
    "token": (TokenId, "A token's id, tok_…; not its secret."),
}
_HEADERS: dict[str, Any] = {"Idempotency-Key": Key, "Last-Event-ID": Cursor}
_ALWAYS = {
    400: "The request cannot be read",
    413: "The body is too large",
    422: "A value is outside its limits; `facts` says which",
    429: "The rate limit of the token or tenant is reached; see `Retry-After`",
    503: "The store cannot be reached, or a queue is full; see `Retry-After`",
}
_WITH_TOKEN = {401: "No token, or none that is known", 403: "The token lacks the scope"}


def document(operations: Iterable[Operation]) -> dict[str, Any]:
    """The whole document; the same operations always give the same text."""
    operations = list(operations)
    types = [kind for operation in operations for kind in _types(operation)]
    schemas, components = msgspec.json.schema_components([*types, Problem], ref_template=_TEMPLATE)
    by_type = dict(zip(map(_key, [*types, Problem]), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _described(operation, by_type)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Penstock",
            "version": penstock.__version__,
            "description": "A durable job queue over HTTP. Errors are RFC 9457 problem documents with a stable `code`.",
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "security": [{"token": []}],
        "tags": [{"name": tag} for tag in dict.fromkeys(one.tag for one in operations if one.tag)],
        "paths": paths,
        "components": {
            "schemas": dict(sorted(components.items())),
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "An API token, pst_…"}
            },
        },
    }


def as_text(described: dict[str, Any]) -> str:
    """The document as it is checked in: `make openapi` writes it, so that a change to the API shows as a difference."""
    return json.dumps(described, indent=2, ensure_ascii=False) + "\n"


def _types(operation: Operation) -> Iterable[Any]:
    for kind in (operation.body, operation.answer):
        if kind is not None:
            yield kind
    if operation.query is not None:
        yield operation.query


def _key(kind: Any) -> str:
    return repr(kind)


def _described(operation: Operation, by_type: dict[str, Any]) -> dict[str, Any]:
    said = (operation.handle.__doc__ or "").strip()
    described: dict[str, Any] = {"operationId": operation.name, "summary": operation.summary}
    if said:
        described["description"] = said
    if operation.tag:
        described["tags"] = [operation.tag]
    if operation.scope is None:
        described["security"] = []
    else:
        scopes = (operation.scope,) if isinstance(operation.scope, Scope) else operation.scope
        described["description"] = (
            f"{said}\n\nScope: {' or '.join(f'`{scope}`' for scope in scopes)}.".strip()
        )
    if parameters := [*_in_path(operation), *_in_query(operation), *_in_headers(operation)]:
        described["parameters"] = parameters
    if operation.body is not None:
        content: dict[str, Any] = {"schema": by_type[_key(operation.body)]}
        if operation.example is not None:
            content["example"] = operation.example
        described["requestBody"] = {
            "required": not operation.body_is_optional,
            "content": {"application/json": content},
        }
    described["responses"] = _answers(operation, by_type)
    return described


def _in_path(operation: Operation) -> Iterable[dict[str, Any]]:
    for name in re.findall(r"\{(\w+)\}", operation.path):
        kind, said = _PATH_PARAMETERS[name]
        yield {
            "name": name,
            "in": "path",
            "required": True,
            "schema": msgspec.json.schema(kind),
            "description": said,
        }


def _in_query(operation: Operation) -> Iterable[dict[str, Any]]:
    if operation.query is None:
        return
    _, components = msgspec.json.schema_components([operation.query], ref_template=_TEMPLATE)
    for name, schema in components[operation.query.__name__]["properties"].items():
        yield {"name": name, "in": "query", "required": False, "schema": schema}


def _in_headers(operation: Operation) -> Iterable[dict[str, Any]]:
    for name, said in operation.headers.items():
        yield {
            "name": name,
            "in": "header",
            "required": False,
            "description": said,
            "schema": msgspec.json.schema(_HEADERS[name]),
        }


def _answers(operation: Operation, by_type: dict[str, Any]) -> dict[str, Any]:
    good: dict[str, Any] = {"description": operation.summary}
    if operation.answer is not None:
        good["content"] = {operation.media_type: {"schema": by_type[_key(operation.answer)]}}
    answers = {operation.status: good}
    refused = {MEDIA_TYPE: {"schema": by_type[_key(Problem)]}}
    also = {**_ALWAYS, **({} if operation.scope is None else _WITH_TOKEN), **operation.also}
    if operation.scope is None:
        also = dict(operation.also)
    if "{" in operation.path:
        also.setdefault(404, "Nothing can be there under such a name")
    for status, said in also.items():
        if status < 300:
            answers[status] = {**good, "description": said}
        else:
            answers[status] = {"description": said, "content": refused}
    return {str(status): answers[status] for status in sorted(answers)}
