"""The page shows what the result and its recording say, opens without a network, and names what was not recorded."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest
from traces import mlp, transformer

import triosim
from triosim import cli, save_trace
from triosim.reports.colours import CATEGORY_COLOURS
from triosim.reports.page.recorded import recorded
from triosim.reports.pictures.memory_plot import write_memory_plot
from triosim.results.result import Result
from triosim.units import format_time

RING = "ring(4, bandwidth=1 MB/s)"


@pytest.fixture(scope="module")
def result() -> Result:
    return triosim.simulate(mlp(), "dp=2,pp=2", gpus=4, topology=RING, micro_batches=2, timeline=True, links=True)


def values_of(page: Path) -> Any:
    found = re.search(r'id="data">(.*?)</script>', page.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def rgb(colour: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(colour.removeprefix("#")))


def slices(track: dict[str, Any]) -> list[tuple[int, int]]:
    """Return the starts and ends of a track's slices."""
    starts, now = [], 0
    for step in track["starts"]:
        now += step
        starts.append(now)
    return [(start, start + lasts) for start, lasts in zip(starts, track["lasts"], strict=True)]


def test_the_slices_of_a_rank_add_up_to_its_compute_and_communication_times(result: Result) -> None:
    timeline = recorded(result)["timeline"]
    for rank in result.data.ranks:
        tracks = [track for track in timeline["tracks"] if rank.rank in track["ranks"]]
        kinds = {"compute": 0, "communication": 0, "waiting": 0}
        for track in tracks:
            for what, (start, end) in zip(track["whats"], slices(track), strict=True):
                is_transfer = timeline["whats"][what][1] == "communication"
                kinds["communication" if is_transfer else "compute"] += end - start
            kinds["waiting"] += sum(lasts for _, lasts, _ in track["waits"])
        assert kinds["compute"] == pytest.approx(rank.compute_s * 1e9, abs=50)
        assert kinds["waiting"] == pytest.approx(rank.waiting_s * 1e9, abs=50)


def test_slices_of_a_track_do_not_overlap_and_arrows_go_forward(result: Result) -> None:
    timeline = recorded(result)["timeline"]
    for track in timeline["tracks"]:
        found = slices(track)
        assert all(end <= start for (_, end), (start, _) in pairwise(found))
        assert all(start < end <= timeline["end_ns"] for start, end in found)
    assert len(timeline["arrows"]) == 8  # two micro-batches forward and back, in two replicas
    assert all(sent <= received for _, sent, _, received in timeline["arrows"])
    ranks = [timeline["tracks"][row]["ranks"] for arrow in timeline["arrows"] for row in (arrow[0], arrow[2])]
    assert all(len(one) == 1 for one in ranks)


def test_a_wait_names_the_rank_that_came_last() -> None:
    slow = triosim.simulate(
        mlp(), "dp", gpus=2, topology="ring(2, bandwidth=1 MB/s)", conditions={"slow_gpus": {1: 3.0}}, timeline=True
    )
    tracks = recorded(slow)["timeline"]["tracks"]
    waits = {rank: wait for track in tracks for rank in track["ranks"] for wait in track["waits"]}
    assert set(waits) == {0}
    assert waits[0][2] == 1


def test_the_memory_curve_reaches_the_peak_of_the_fullest_rank(result: Result) -> None:
    curve = recorded(result)["memory_curve"]
    totals = [sum(values) for values in zip(*curve["categories"].values(), strict=True)]
    assert max(totals) == max(row.peak_bytes for row in result.data.memory)
    assert curve["times"] == sorted(set(curve["times"]))


def test_the_loads_of_links_are_those_of_the_table(result: Result) -> None:
    found = recorded(result)["link_loads"]
    drawn = {(line["source"], line["target"]): line["mean"] for line in found["drawing"]["lines"]}
    for link in result.data.links:
        source, _, destination = link.name.partition("->")
        assert drawn[source, destination] == pytest.approx(link.utilisation, abs=1e-3)


class Outside(HTMLParser):
    """Collects what a page would load from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("src", "href", "action") and not (value or "").startswith(("#", "data:")):
                self.found.append(f"{tag} {name}={value}")


def test_the_page_is_one_file_with_the_figures_of_the_result(result: Result, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    result.save_report(page)
    text = page.read_text(encoding="utf-8")
    outside = Outside()
    outside.feed(text)
    assert not outside.found
    assert f"A step takes {format_time(result.step_time_s)}" in text
    assert "triosim simulate" in text
    values = values_of(page)
    assert values["step_time_s"] == result.step_time_s
    (parts,) = [bars for bars in values["bars"] if bars["anchor"] == "parts"]
    for row in parts["rows"]:
        assert sum(row["values"]) == pytest.approx(result.step_time_s)
    for note in result.notes:
        assert note.split(";")[0].split("'")[0] in text


def test_a_name_cannot_leave_its_place_in_the_page(tmp_path: Path) -> None:
    trace, page = tmp_path / "evil.json", tmp_path / "evil.html"
    save_trace(mlp(), trace)
    content = json.loads(trace.read_text(encoding="utf-8"))
    content["model"] = "</script><script>alert(1)</script>"
    for operator in content["operators"]:
        operator["layer"] = "<img src=x onerror=alert(1)>"
    trace.write_text(json.dumps(content), encoding="utf-8")
    triosim.simulate(trace, timeline=True).save_report(page)
    text = page.read_text(encoding="utf-8")
    assert "<script>alert" not in text
    assert "<img src=x" not in text
    assert text.count("</script>") == 3


def test_a_recorded_result_makes_the_same_charts_later_and_others_name_what_is_missing(tmp_path: Path) -> None:
    trace, kept, bare = tmp_path / "mlp.json", tmp_path / "kept.json.gz", tmp_path / "bare.json"
    save_trace(mlp(), trace)
    run = ["simulate", str(trace), "-p", "dp", "-n", "4", "-t", RING, "-q"]
    assert cli.run([*run, "-o", str(kept), "--record", "--report", str(tmp_path / "now.html")]) == 0
    assert cli.run(["report", str(kept), "-o", str(tmp_path / "later.html")]) == 0
    now, later = values_of(tmp_path / "now.html"), values_of(tmp_path / "later.html")
    assert {name: now[name] for name in ("timeline", "link_loads", "memory_curve")} == {
        name: later[name] for name in ("timeline", "link_loads", "memory_curve")
    }
    assert cli.run([*run, "-o", str(bare)]) == 0
    assert cli.run(["report", str(bare)]) == 0
    text = (tmp_path / "bare.html").read_text(encoding="utf-8")
    for missing in ("holds no timeline", "holds no memory over time", "holds no loads of links"):
        assert missing in text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--report", "page.txt"], "'.txt' is no page; end the name in .html"),
        (["--record"], "--record: has no file to keep it in; add --output result.json.gz"),
    ],
)
def test_what_cannot_be_written_is_said_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    trace = tmp_path / "mlp.json"
    save_trace(mlp(), trace)
    assert cli.run(["simulate", str(trace), *options]) == 2
    assert said in capsys.readouterr().err


def test_a_comparison_has_a_page_with_the_figures_of_its_table(tmp_path: Path) -> None:
    trace, page = tmp_path / "mlp.json", tmp_path / "compared.html"
    save_trace(mlp(), trace)
    assert (
        cli.run(["compare", str(trace), "-n", "2", "-t", "ring(2, bandwidth=1 MB/s)", "-q", "--report", str(page)]) == 0
    )
    compared = triosim.compare(trace, 2, topology="ring(2, bandwidth=1 MB/s)")
    steps, rates = values_of(page)["bars"]
    assert [sum(row["values"]) for row in steps["rows"]] == pytest.approx(
        [run.result.step_time_s for run in compared.runs if run.result], rel=1e-6
    )
    assert [row["values"] for row in rates["rows"]] == [[run.throughput] for run in compared.runs if run.result]


def test_the_memory_of_many_gpus_has_a_page(tmp_path: Path) -> None:
    trace, page = tmp_path / "mlp.json", tmp_path / "memory.html"
    save_trace(mlp(), trace)
    options = ["-p", "pp=2", "--micro-batches", "2", "-q", "--report", str(page)]
    assert cli.run(["memory", str(trace), *options]) == 0
    (peaks,) = values_of(page)["bars"]
    result = triosim.simulate(trace, "pp=2", gpus=2, micro_batches=2, topology="ring(2, bandwidth=1 GB/s)")
    assert sorted(sum(row["values"]) * 2**30 for row in peaks["rows"]) == pytest.approx(
        sorted(row.peak_bytes for row in result.data.memory)
    )


def test_a_search_has_a_page_of_its_answer(tmp_path: Path) -> None:
    trace, page, answer = tmp_path / "mlp.json", tmp_path / "search.html", tmp_path / "search.json"
    save_trace(mlp(), trace)
    run = ["search", str(trace), "-n", "4", "-t", RING, "--global-batch-size", "8", "--vary", "parallel=ddp,fsdp"]
    assert cli.run([*run, "--jobs", "1", "-q", "--report", str(page), "-o", str(answer)]) == 0
    found = json.loads(answer.read_text(encoding="utf-8"))
    (steps,) = values_of(page)["bars"]
    assert [sum(row["values"]) for row in steps["rows"]] == pytest.approx([row["step_time_s"] for row in found["top"]])
    assert found["best"]["command"] in page.read_text(encoding="utf-8").replace("&#x27;", "'").replace("&quot;", '"')


def test_a_category_of_memory_has_one_colour_in_pictures_and_pages(tmp_path: Path) -> None:
    """Each that a step has is told from the others; the picture and the page take them from one table."""
    run = triosim.simulate(transformer(), timeline=True)
    run.save_report(tmp_path / "report.html")
    values = values_of(tmp_path / "report.html")
    colours = values["colours"]
    categories = [rgb(colours[one.replace("_", " ")]) for one in CATEGORY_COLOURS]
    assert min(math.dist(a, b) for a, b in combinations(categories, 2)) > 50  # of 255 for each part
    assert set(values["memory_curve"]["categories"]) <= set(colours)
    assert run.memory is not None
    write_memory_plot(run.memory.report(0), tmp_path / "memory.svg")
    drawn = (tmp_path / "memory.svg").read_text(encoding="utf-8").lower()
    for category in values["memory_curve"]["categories"]:
        assert colours[category].lower() in drawn


def test_a_label_of_many_ranks_is_short() -> None:
    """The two data-parallel groups of 64 ranks have every second rank each: a label with all of them leaves no room."""
    run = triosim.simulate(mlp(), "dp=32,tp=2", topology="dgx-a100(gpus=64)", batch_size=8, timeline=True)
    labels = [track["label"] for track in recorded(run)["timeline"]["tracks"]]
    assert max(map(len, labels)) < 60
    assert len(set(labels)) == len(labels)
    assert any("..." in label for label in labels)
