"""The dashboard's files: a page for every address below /ui/, and its parts under names that never mean another thing.

The page finds its parts and the API relative to its own address, so it works under any prefix that a proxy puts before it.
"""

from __future__ import annotations

import gzip
from functools import cache
from importlib import resources

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from penstock.server.problems import NoSuchPage, answer

POLICY = (
    "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "object-src 'none'; base-uri 'self'; form-action 'self'; frame-ancestors 'none'"
)
_BASE = '<base href="./">'
"""What the built page has for its base; replaced by the way from an address to /ui/."""
_MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}
_NOT_BUILT = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Penstock</title>
<h1>The dashboard is not built</h1>
<p>The service runs, and its API answers at <a href="{up}docs">/docs</a>. This copy of Penstock was installed from its sources
without the dashboard's page. To build it, in the folder of the sources:</p>
<pre>make ui</pre>
<p>or install Penstock anew without PENSTOCK_SKIP_UI. A wheel has the page in it.</p></html>
"""


@cache
def _file(name: str) -> bytes | None:
    """A file of the built page."""
    if not name or name.startswith(".") or "/" in name or "\\" in name:
        return None
    file = resources.files("penstock.server") / "static" / name
    return file.read_bytes() if file.is_file() else None


@cache
def _compressed(name: str) -> bytes:
    content = _file(name)
    assert content is not None
    return gzip.compress(content, 9, mtime=0)


async def page(request: Request) -> Response:
    """The page; which screen it shows is its own business."""
    up = _up(request)
    content = _file("index.html")
    if content is None:
        return Response(_NOT_BUILT.format(up="../" + up), 503, _page_headers(), _MEDIA_TYPES["html"])
    based = content.replace(_BASE.encode(), f'<base href="{up or "./"}">'.encode(), 1)
    return Response(based, 200, _page_headers(), _MEDIA_TYPES["html"])


async def asset(request: Request) -> Response:
    """A part of the page. Its name has its hash in it, so it may be kept for ever."""
    name = request.path_params["file"]
    content = _file(name)
    media_type = _MEDIA_TYPES.get(name.rpartition(".")[2])
    if content is None or media_type is None or name == "index.html":
        return answer(NoSuchPage("the dashboard has no such part; reload the page"), request.url.path)
    headers = {"Cache-Control": "public, max-age=31536000, immutable", "Vary": "Accept-Encoding"}
    if "gzip" in request.headers.get("accept-encoding", ""):
        content = _compressed(name)
        headers["Content-Encoding"] = "gzip"
    return Response(content, 200, headers, media_type)


async def home(request: Request) -> Response:
    """Whoever opens the service's own address is shown the dashboard."""
    return RedirectResponse("ui/", 307)


def _page_headers() -> dict[str, str]:
    return {"Cache-Control": "no-cache", "Content-Security-Policy": POLICY}


def _up(request: Request) -> str:
    """The way from the address of a page to /ui/: `../` for each folder it is below."""
    raw: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
    below = raw.partition(b"?")[0].partition(b"/ui/")[2]
    return "../" * below.count(b"/")


def routes() -> list[Route]:
    return [
        Route("/", home),
        Route("/ui", home),
        Route("/ui/assets/{file}", asset),
        Route("/ui/{screen:path}", page),
    ]
