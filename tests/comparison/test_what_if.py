"""What a faster part of the system saves: by hand where communication and computation do not overlap."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import traces
from streams import Script, same_on

from triosim import cli, save_trace
from triosim.comparison.what_if import what_if
from triosim.errors import OptionError
from triosim.networks.topology import Topology
from triosim.results.result import Result
from triosim.simulation import simulate

RING = "ring(4, bandwidth=1 MB/s)"  # so slow that the small trace's gradients take a while


def saved(result: Result) -> dict[str, float]:
    return {row.what: row.saved_s for row in result.data.what_if}


def test_twice_the_speed_saves_half_of_what_a_part_takes() -> None:
    """dp on a ring without latency: the step is computation, then 2 * 3/4 * 4,560 bytes at 1 MB/s."""
    result = what_if(traces.mlp(), "dp=4", topology=RING)
    reduce = 1.5 * 4560 / 1e6
    compute = result.data.ranks[0].compute_s
    assert result.step_time_s == pytest.approx(compute + reduce)
    assert saved(result) == {
        "all GPUs": pytest.approx(compute / 2),
        "gpu-gpu 1.00 MB/s, 0 s": pytest.approx(reduce / 2),
    }
    assert [row.step_time_s for row in result.data.what_if] == sorted(row.step_time_s for row in result.data.what_if)
    for row in result.data.what_if:
        assert row.speed_up == pytest.approx(result.step_time_s / row.step_time_s)


def test_a_factor_of_four_saves_three_quarters() -> None:
    result = what_if(traces.mlp(), "dp=4", topology=RING, factor=4)
    assert saved(result)["all GPUs"] == pytest.approx(0.75 * result.data.ranks[0].compute_s)


def test_links_that_carry_nothing_are_not_tried() -> None:
    """Two nodes, of which one is used: the fabric between them saves nothing."""
    topology = Topology.load("dgx-h100", gpus=16)
    rows = what_if(traces.mlp(), "dp=8", topology=topology).data.what_if
    assert {row.what for row in rows} == {"all GPUs", "gpu-switch 450 GB/s, 500 ns"}
    assert {row.links for row in rows} == {0, 32}


def test_what_was_slow_before_is_slow_still() -> None:
    """A GPU that is three times slower holds the step up; with all twice as fast, it does for half of that time."""
    slow = {"slow_gpus": {1: 3.0}}
    result = what_if(traces.mlp(), "dp=4", topology=RING, conditions=slow)
    assert saved(result)["all GPUs"] == pytest.approx(result.data.ranks[1].compute_s / 2)
    assert result.data.ranks[1].compute_s == pytest.approx(3 * result.data.ranks[0].compute_s)


def test_circuits_are_a_kind_of_link() -> None:
    result = what_if(traces.mlp(), "dp=4", topology=RING, network="photonic", options={"setup": "0 s"})
    assert {row.what for row in result.data.what_if} == {"all GPUs", "gpu-gpu 60.5 GB/s, 500 ns"}
    assert min(saved(result).values()) > 0


def test_a_network_that_does_not_tell_is_tried_with_every_kind() -> None:
    result = what_if(traces.mlp(), "dp=4", topology="dgx-a100", network="analytical")
    assert {"all GPUs", "all links"} < saved(result).keys()


@pytest.mark.parametrize("name", ["Ring(4)_Switch(2)", "dgx-a100", "mesh(4x2, bandwidth=65 GB/s)"])
@pytest.mark.parametrize("network", ["packet", "analytical"])
def test_a_system_with_the_same_links_takes_the_same_time(name: str, network: str) -> None:
    topology = Topology.load(
        f"{name[:6]}, bandwidth=50 GB/s)_Switch(2, bandwidth=25 GB/s)" if "_" in name else name, gpus=8
    )
    again = topology.with_links(lambda link: link)
    options = {"collective": "hierarchical"} if "_" in name else {}
    first, second = (
        simulate(traces.mlp(), "ddp=8", topology=one, network=network, **options).step_time_s  # type: ignore[arg-type]
        for one in (topology, again)
    )
    assert first == pytest.approx(second, rel=1e-9)


def test_task_streams_are_tried_too() -> None:
    """1 ms of computation, then 10 MB over links of 10 GB/s, another 1 ms: either twice as fast saves half of one."""
    streams = same_on(2, Script().run(1e-3).ask("all_reduce", "tp", 10e6), tp=((0, 1),))
    found = saved(what_if(streams, topology="ring(2, bandwidth=10 GB/s)"))
    assert found == {"all GPUs": pytest.approx(0.5e-3), "gpu-gpu 10.0 GB/s, 0 s": pytest.approx(0.5e-3)}


def test_slower_is_not_faster() -> None:
    with pytest.raises(OptionError, match="not faster"):
        what_if(traces.mlp(), "dp=4", topology=RING, factor=1)


def test_the_command_shows_all_views_and_writes_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    trace, output, picture = tmp_path / "mlp.json", tmp_path / "result.json", tmp_path / "links.svg"
    save_trace(traces.mlp(), trace)
    views = ["--links", "--by-layer", "--what-if", "--link-plot", str(picture), "-o", str(output)]
    assert cli.run(["simulate", str(trace), "-p", "dp", "-n", "4", "-t", RING, *views]) == 0
    shown = capsys.readouterr().out
    assert all(len(line) <= 80 for line in shown.splitlines())
    for title in ("busiest at", "Exposed communication, mean over the GPUs", "What if a part were twice as fast?"):
        assert title in shown
    assert "<svg" in picture.read_text(encoding="utf-8")
    written = json.loads(output.read_text(encoding="utf-8"))
    assert {row["what"] for row in written["what_if"]} == {"all GPUs", "gpu-gpu 1.00 MB/s, 0 s"}
    assert Result.load(output).data.what_if


def test_a_heat_map_without_links_is_refused_before_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "mlp.json"
    save_trace(traces.mlp(), trace)
    options = ["--network", "analytical", "--link-plot", str(tmp_path / "links.png")]
    assert cli.run(["simulate", str(trace), "-p", "dp", "-n", "4", "-t", RING, *options]) == 2
    assert "simulates no links" in capsys.readouterr().err
