"""The page of a run of many slices redraws quickly, and that of two GPUs draws their links.

Needs Playwright (PyPI) and Chromium, as ``test_page_in_browser`` does.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from traces import transformer

import triosim

playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
CHROMIUM = Path(os.environ.get("CHROMIUM", "/usr/bin/chromium"))
pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason=f"{CHROMIUM} is not there")


def test_two_hundred_thousand_slices_scroll_smoothly(tmp_path: Path) -> None:
    """A redraw takes below the 50 ms in which motion looks smooth, with room for a slow machine; the file is below 6 MB."""
    options = {"gpu": "A100", "topology": "dgx-a100", "layers": 48, "batch_size": 96, "micro_batches": 96}
    triosim.simulate("gpt2", "pp=8", timeline=True, links=True, **options).save_report(tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size < 6e6
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto((tmp_path / "report.html").as_uri())
        page.wait_for_timeout(500)
        assert page.evaluate("timeline.tracks.reduce((sum, track) => sum + track.starts.length, 0)") > 200_000
        milliseconds = page.evaluate(
            """() => Array.from({ length: 20 }, (_, step) => {
                const began = performance.now(), share = step < 10 ? 0.5 : 0.002;
                timeline.show(timeline.end * 0.02 * step, timeline.end * (0.02 * step + share));
                timeline.made.chart.getZr().flush();
                return performance.now() - began })"""
        )
        browser.close()
    assert sorted(milliseconds)[10] < 50


def test_two_gpus_above_each_other_are_drawn(tmp_path: Path) -> None:
    """Their drawing has no width, which a chart that fits it into its place divides by."""
    topology = tmp_path / "two.yaml"
    topology.write_text(
        "nodes: [{name: a, kind: gpu}, {name: b, kind: gpu}]\nlinks: [{from: a, to: b, bandwidth: 1 GB/s, latency: 1 us}]\n"
    )
    run = triosim.simulate(transformer(), "ddp=2", topology=topology, links=True)
    run.save_report(tmp_path / "report.html")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto((tmp_path / "report.html").as_uri())
        page.wait_for_timeout(500)
        blue = page.evaluate(
            """() => { const canvas = document.querySelector('#link-graph canvas'), context = canvas.getContext('2d');
                const pixels = context.getImageData(0, 0, canvas.width, canvas.height).data;
                let count = 0;
                for (let at = 0; at < pixels.length; at += 4) if (pixels[at] === 47 && pixels[at + 1] === 109) count++;
                return count }"""
        )
        browser.close()
    assert blue > 500  # pixels of the two circles of 26 pixels
