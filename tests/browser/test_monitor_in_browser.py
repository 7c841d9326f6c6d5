"""The monitor's page in a browser: it follows a run, its buttons work, and it says when the run is over."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from traces import mlp

import triosim
from triosim.monitor.server import served
from triosim.monitor.watched_run import WatchedRun

playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
pytest.importorskip("uvicorn")
CHROMIUM = Path(os.environ.get("CHROMIUM", "/usr/bin/chromium"))
pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason=f"{CHROMIUM} is not there")

QUIET = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]


def test_a_run_is_followed_paused_and_stopped() -> None:
    watched = WatchedRun(lambda seconds, tasks: None)
    results: list[Any] = []
    options: dict[str, Any] = {"gpus": 4, "topology": "ring(4, bandwidth=1 MB/s)", "iterations": 20_000}
    run = threading.Thread(target=lambda: results.append(triosim.simulate(mlp(), "dp=4", progress=watched, **options)))
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=str(CHROMIUM), args=QUIET)
        with served(watched.state, watched.actions) as url:
            page = browser.new_page()
            said: list[str] = []
            page.on("pageerror", lambda error: said.append(str(error)))
            run.start()
            page.goto(url)
            page.wait_for_selector("text=What each rank does", timeout=20_000)
            page.click("#pause")
            page.wait_for_selector("text=triosim: paused")
            tasks = watched.state()["tasks"]
            time.sleep(0.2)
            assert watched.state()["tasks"] == tasks
            page.click("#go-on")
            page.wait_for_selector("text=triosim: simulating")
            page.click("#stop")
            run.join(20)
            assert said == []
        page.wait_for_selector("text=the run is over", timeout=10_000)
        browser.close()
    assert 0 < len(results[0].data.iterations) < 20_000
