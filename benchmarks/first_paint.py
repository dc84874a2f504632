"""How soon the dashboard is there: first paint and first chart of the overview, on loopback, in Debian's Chromium.

    python benchmarks/first_paint.py [--rounds 5]

A real `penstock dev` on an empty database; each round is a new browser profile, so nothing is cached. Gates: 0.5 s and 1 s.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import tempfile

from playwright.sync_api import sync_playwright

PAINT = "performance.getEntriesByType('paint').find((one) => one.name === 'first-contentful-paint')?.startTime ?? null"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "penstock", "dev", "--port", "0", "--data", f"{folder}/db"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder) as process:
            try:
                url, token = _greeting(process)
                paints, charts = _measure(url, token, given.chromium, given.rounds)
            finally:
                process.terminate()
    print(
        f"first paint {statistics.median(paints):.0f} ms (gate 500), chart {statistics.median(charts):.0f} ms (gate 1,000)"
    )


def _greeting(process: subprocess.Popen[str]) -> tuple[str, str]:
    assert process.stdout is not None
    told = ""
    while "curl" not in told:
        line = process.stdout.readline()
        assert line, f"penstock dev ended early: {told}"
        told += line
    url, token = re.search(r"up at (\S+)", told), re.search(r"token\s+(\S+)", told)
    assert url is not None
    assert token is not None
    return url[1], token[1]


def _measure(url: str, token: str, chromium: str, rounds: int) -> tuple[list[float], list[float]]:
    paints, charts = [], []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for _ in range(rounds):
            context = browser.new_context()
            answer = context.request.post(
                f"{url}/ui/session", data={"token": token}, headers={"Penstock-Page": "1", "Origin": url}
            )
            assert answer.ok, answer.text()
            context.request.post(
                f"{url}/v1/jobs", data={"type": "hello"}, headers={"Authorization": f"Bearer {token}"}
            )
            page = context.new_page()
            page.goto(f"{url}/ui/")
            page.wait_for_selector(".chart canvas")
            charts.append(page.evaluate("performance.now()"))
            paints.append(page.evaluate(PAINT))
            context.close()
        browser.close()
    return paints, charts


if __name__ == "__main__":
    main()
