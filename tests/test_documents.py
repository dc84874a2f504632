"""What the documents show is run, and what they draw is drawn from the code."""

from __future__ import annotations

import inspect
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock import Queue
from penstock.testing import memory_queue

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
async def test_an_example_of_the_readme_runs(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_URL", "memory://")
    example = tmp_path / f"example_{number}.py"
    source = BLOCKS[number]
    example.write_text(source.replace("asyncio.run(main())", "pass"))
    names = runpy.run_path(str(example))
    functions = re.findall(r"^async def (\w+)", source, re.MULTILINE)
    assert functions, "an example without a function to call is not run"
    for name in ["main"] if "main" in functions else functions:
        await _call(names[name])


async def _call(function: Any) -> None:
    queue = memory_queue()
    await queue.enqueue("email.send", queue="emails")
    takes_queue = any(
        parameter.annotation in (Queue, "Queue")
        for parameter in inspect.signature(function).parameters.values()
    )
    await (function(queue) if takes_queue else function())


def test_the_example_of_a_test_passes_with_the_settings_that_are_named(tmp_path: Path) -> None:
    section = README.split("## Testing your own code")[1]
    [setting, table] = re.findall(r"`(asyncio_mode = .*?|\[tool\..*?)`", section.split("```")[0])
    (tmp_path / "pyproject.toml").write_text(f"{table}\n{setting}\n")
    (tmp_path / "test_mail.py").write_text(section.split("```python\n")[1].split("```")[0])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mail.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


def test_every_figure_of_the_readme_names_its_script() -> None:
    figures = README.split("## Figures")[1]
    scripts = re.findall(r"benchmarks/\w+\.py", figures)
    assert scripts
    assert all((ROOT / script).exists() for script in scripts)
