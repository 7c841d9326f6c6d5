"""``compare`` of Chakra graphs: one workload on several systems, on the engine and by ASTRA-sim's rules."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from chakra.graphs import all_reduce, computation, write_graphs, write_inputs

import triosim
from triosim.cli import run

MIB = 1 << 20


@pytest.fixture
def workload(tmp_path: Path) -> str:
    """Four ranks that compute for 50 us and reduce 1 MiB, with systems at 50 and 25 GB/s, the second without a system.json."""
    for name, bandwidth in (("near", 50.0), ("far", 25.0)):
        (tmp_path / name).mkdir()
        write_inputs(tmp_path / name, 4, block="Switch", bandwidth=bandwidth)
    (tmp_path / "far" / "system.json").unlink()
    (tmp_path / "graphs").mkdir()
    write_graphs(tmp_path / "graphs", [[computation(0, 50), all_reduce(1, MIB, 0)]] * 4)
    return str(tmp_path / "graphs")


def compared(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, object]]:
    assert run(["compare", *words, "--format", "json"]) == 0
    runs: list[dict[str, object]] = json.loads(capsys.readouterr().out)["runs"]
    return runs


def test_each_system_has_the_step_that_simulate_predicts(
    workload: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    near, far = str(tmp_path / "near"), str(tmp_path / "far" / "network.yml")
    runs = compared(capsys, workload, "-t", near, "-t", far)
    alone = [triosim.simulate(workload, topology=f"{near}/network.yml"), triosim.simulate(workload, topology=far)]
    assert [row["step_time_s"] for row in runs] == [result.step_time_s for result in alone]
    assert [row["speed_up"] for row in runs] == [1.0, alone[0].step_time_s / alone[1].step_time_s]
    assert all(row["compute_s"] == pytest.approx(50e-6) for row in runs)


def test_the_rules_stand_beside_the_engine(workload: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    near, far = str(tmp_path / "near"), str(tmp_path / "far")
    runs = compared(capsys, workload, "-t", near, "-t", far, "--rules", "astra-sim", "--backend", "congestion-aware")
    assert [row["rules"] for row in runs] == ["triosim", "congestion-aware"] * 2
    study = ["-t", f"{near}/network.yml", "--system", f"{near}/system.json", "--format", "json"]
    assert run(["simulate", workload, "--rules", "astra-sim", "--backend", "congestion-aware", *study]) == 0
    assert runs[1]["step_time_s"] == json.loads(capsys.readouterr().out)["cycles"] / 1e9
    assert str(runs[3]["reason"]).startswith(f"{far}: ASTRA-sim's rules need a network.yml and a system.json")


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ([], "--topology: no system is given; give each"),
        (["-t", "nowhere"], "the graphs can run on no system: unknown topology 'nowhere'"),
        (["-t", "ring(4)", "--plot", "x.png"], "--plot: has no effect on Chakra graphs"),
        (["-t", "ring(4)", "--backend", "congestion-aware"], "--backend: has no effect without --rules"),
    ],
)
def test_what_cannot_be_compared_is_named(
    workload: str, words: list[str], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["compare", workload, *words]) == 2
    assert what in capsys.readouterr().err


def test_strategies_are_compared_on_one_topology_by_no_rules(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compare", "gpt2", "-n", "2", "-t", "dgx-h100", "-t", "dgx-a100"]) == 2
    assert "--topology: 2 topologies; give one; strategies are compared on it" in capsys.readouterr().err
    assert run(["compare", "gpt2", "-n", "2", "--rules", "astra-sim"]) == 2
    assert "--rules: has no effect without Chakra graphs" in capsys.readouterr().err
