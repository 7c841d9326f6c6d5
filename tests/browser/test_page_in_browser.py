"""The page in a browser: it draws without errors and without a network, and zooming, searching and keys work.

Needs Playwright (PyPI) and Chromium, which are looked for: ``CHROMIUM`` names another than /usr/bin/chromium.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from traces import transformer

import triosim

playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
CHROMIUM = Path(os.environ.get("CHROMIUM", "/usr/bin/chromium"))
pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason=f"{CHROMIUM} is not there")

QUIET = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]


@pytest.fixture(scope="module")
def result() -> Any:
    return triosim.simulate(
        transformer(),
        "dp=2,pp=2",
        gpus=4,
        topology="ring(4, bandwidth=1 GB/s)",
        micro_batches=2,
        timeline=True,
        links=True,
    )


@pytest.fixture(scope="module", params=["light", "dark"])
def page(request: pytest.FixtureRequest, result: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    file = tmp_path_factory.mktemp("page") / "report.html"
    result.save_report(file)
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=str(CHROMIUM), args=QUIET)
        opened = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme=request.param)
        opened.said, opened.asked = [], []
        opened.on("console", lambda message: opened.said.append(message.text))
        opened.on("pageerror", lambda error: opened.said.append(str(error)))
        opened.on("request", lambda asked: opened.asked.append(asked.url))
        opened.goto(file.as_uri())
        opened.wait_for_timeout(500)
        yield opened
        browser.close()


def seen(page: Any) -> tuple[float, float]:
    page.wait_for_timeout(200)
    start, end = page.evaluate("timeline.range")
    return start, end


def test_it_loads_nothing_and_says_nothing(page: Any) -> None:
    assert page.said == []
    assert [url for url in page.asked if not url.startswith(("file:", "data:", "blob:"))] == []


def test_every_chart_is_drawn(page: Any) -> None:
    for chart in page.query_selector_all(".chart"):
        drawn = page.evaluate(
            """(box) => { const canvas = box.querySelector('canvas'), context = canvas.getContext('2d');
                const pixels = context.getImageData(0, 0, canvas.width, canvas.height).data;
                const reds = Array.from({length: pixels.length / 4}, (_, at) => pixels[4 * at + 3] && pixels[4 * at]);
                return new Set(reds).size }""",
            chart,
        )
        assert drawn > 3, chart.get_attribute("id")


def test_its_figures_are_those_of_the_result(page: Any, result: Any) -> None:
    values = json.loads(page.inner_text("#data") or page.evaluate("JSON.stringify(data)"))
    assert values["step_time_s"] == result.step_time_s
    page.click("#time summary")
    cells = page.inner_text("#time table").splitlines()
    assert len(cells) == 1 + len(result.data.ranks)


def test_a_narrow_window_shows_it_without_scrolling_sideways(page: Any) -> None:
    before = page.viewport_size
    page.set_viewport_size({"width": 400, "height": 800})
    try:
        page.wait_for_timeout(300)
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
    finally:
        page.set_viewport_size(before)


@pytest.mark.parametrize("width", [400, 1200])
def test_legends_and_colour_scales_keep_off_the_charts(page: Any, width: int) -> None:
    """Each lies wholly above or below the grid in which bars, curves and links are drawn."""
    before = page.viewport_size
    page.set_viewport_size({"width": width, "height": 800})
    try:
        page.wait_for_timeout(300)
        found = page.evaluate(
            """charts.flatMap(({ chart }) => {
                const grid = chart.getModel().getComponent('grid');
                if (!grid) return [];
                const area = grid.coordinateSystem.getRect();
                const of = (kind) => chart.getModel().queryComponents({ mainType: kind });
                return [...of('legend'), ...of('visualMap')].map((one) => {
                  const { group } = chart.getViewOfComponentModel(one), box = group.getBoundingRect();
                  const top = group.y + box.y * group.scaleY;
                  return [chart.getDom().id, top, top + box.height, area.y, area.y + area.height, box.height];
                });
            })"""
        )
    finally:
        page.set_viewport_size(before)
    assert {"parts", "memory-curve", "link-raster"} <= {row[0] for row in found}
    for name, top, bottom, area_top, area_bottom, height in found:
        assert height == 0 or bottom <= area_top + 1 or top >= area_bottom - 1, (
            name,
            top,
            bottom,
            area_top,
            area_bottom,
        )


def test_zooming_and_moving_by_keys(page: Any, result: Any) -> None:
    page.evaluate("timeline.show(0, timeline.end)")
    whole = seen(page)
    page.focus("#timeline")
    page.keyboard.press("+")
    start, end = seen(page)
    assert end - start == pytest.approx((whole[1] - whole[0]) / 2, rel=0.01)
    page.keyboard.press("ArrowRight")
    moved = seen(page)
    assert moved[0] - start == pytest.approx(0.2 * (end - start), rel=0.02)
    page.keyboard.press("Home")
    assert seen(page) == pytest.approx(whole)


def test_the_wheel_zooms(page: Any) -> None:
    page.evaluate("timeline.show(0, timeline.end)")
    before = seen(page)
    box = page.query_selector("#timeline").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 40)
    page.mouse.wheel(0, -300)
    start, end = seen(page)
    assert end - start < before[1] - before[0]


def test_searching_finds_every_slice_of_that_name_and_goes_to_it(page: Any, result: Any) -> None:
    page.evaluate("timeline.show(0, timeline.end)")
    page.fill("#search", "receive from GPU 2")
    page.wait_for_timeout(200)
    found = page.inner_text("#found")
    count = page.evaluate(
        """timeline.tracks.flatMap((track) => Array.from(track.whats)).filter((what) =>
            timeline.whats[what][0].startsWith('receive from GPU 2')).length"""
    )
    assert count > 0
    assert found == f"{count} found"
    page.press("#search", "Enter")
    start, end = seen(page)
    assert page.inner_text("#found").startswith(f"1 of {count}: receive from GPU 2")
    assert end - start < page.evaluate("timeline.end")
    page.fill("#search", "")


def test_links_can_be_looked_at_over_time(page: Any) -> None:
    page.evaluate("const at = document.getElementById('link-time'); at.value = 5; at.dispatchEvent(new Event('input'))")
    assert " to " in page.inner_text("#link-when")
