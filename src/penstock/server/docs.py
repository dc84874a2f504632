"""The API's page for people: made from the OpenAPI document, one file, no script, nothing from elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape
from typing import Any

_STYLE = """
:root { color-scheme: light dark; --line: color-mix(in srgb, currentColor 18%, transparent); }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
code, pre { font: 0.9em/1.45 ui-monospace, monospace; }
pre { overflow-x: auto; padding: 0.75rem; border: 1px solid var(--line); border-radius: 6px; }
details { border-top: 1px solid var(--line); padding: 0.5rem 0; }
summary { cursor: pointer; } summary b { display: inline-block; min-width: 4.5rem; }
table { border-collapse: collapse; } td { padding: 0.15rem 1rem 0.15rem 0; vertical-align: top; }
"""
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


def page(document: dict[str, Any]) -> str:
    return "\n".join(_page(document))


def _page(document: dict[str, Any]) -> Iterator[str]:
    info = document["info"]
    yield "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
    yield f"<title>{escape(info['title'])} API</title><style>{_STYLE}</style>"
    yield f"<h1>{escape(info['title'])} API</h1><p>{_words(info['description'])}"
    yield "<p>Send a token with each request: <code>Authorization: Bearer pst_…</code>. "
    yield "For programs: <a href=openapi.json>openapi.json</a>."
    for tag in document["tags"]:
        yield f"<h2>{escape(tag['name'])}</h2>"
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                if tag["name"] in operation.get("tags", ()):
                    yield from _operation(method.upper(), path, operation)


def _operation(method: str, path: str, operation: dict[str, Any]) -> Iterator[str]:
    yield f"<details><summary><b>{method}</b> <code>{escape(path)}</code> {escape(operation['summary'])}</summary>"
    yield f"<p>{_words(operation.get('description', ''))}"
    if parameters := operation.get("parameters"):
        yield "<table>"
        for one in parameters:
            said = one.get("description") or one["schema"].get("description") or ""
            yield f"<tr><td><code>{escape(one['name'])}</code><td>{one['in']}<td>{_words(said)}"
        yield "</table>"
    yield f"<pre>{escape(_curl(method, path, operation))}</pre><table>"
    for status, answer in operation["responses"].items():
        yield f"<tr><td>{status}<td>{_words(answer['description'])}"
    yield "</table></details>"


def _curl(method: str, path: str, operation: dict[str, Any]) -> str:
    lines = [f"curl $PENSTOCK{path}" if method in ("GET", "POST") else f"curl -X {method} $PENSTOCK{path}"]
    if operation.get("security") != []:
        lines.append("-H 'Authorization: Bearer '$TOKEN")
    if body := operation.get("requestBody"):
        example = body["content"]["application/json"].get("example")
        lines.append(f"-d '{json.dumps(example, ensure_ascii=False)}'" if example is not None else "-d '{}'")
    elif method == "POST":
        lines[0] = f"curl -X POST $PENSTOCK{path}"
    return " \\\n  ".join(lines)


def _words(text: str) -> str:
    """Text with `code` in it."""
    parts = escape(text, quote=False).split("`")
    marked = "".join(f"<code>{part}</code>" if number % 2 else part for number, part in enumerate(parts))
    return marked.replace("\n\n", "<br>")
