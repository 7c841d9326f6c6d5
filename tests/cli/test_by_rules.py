"""``triosim simulate --rules astra-sim``: a study as ASTRA-sim is given it, and what it cannot follow."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from chakra.graphs import all_reduce, computation, write_graphs, write_inputs

from triosim.cli import run


@pytest.fixture
def study(tmp_path: Path) -> list[str]:
    prefix = write_graphs(tmp_path, [[computation(0, 2), all_reduce(1, 1 << 20, 0)]] * 4)
    write_inputs(tmp_path, 4)
    return ["simulate", str(prefix), "-t", str(tmp_path / "network.yml"), "--system", str(tmp_path / "system.json")]


def test_a_study_is_simulated_to_the_nanosecond(study: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Six steps of 262,144 bytes take 5,382 ns each, seven endpoint delays 10, three reductions 489; and 2 us of computing."""
    assert run([*study, "--rules", "astra-sim", "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["cycles"] == 2000 + 6 * 5382 + 7 * 10 + 3 * 489
    assert data["ranks"][3]["exposed_communication"] == data["cycles"] - 2000
    assert run([*study, "--rules", "astra-sim"]) == 0
    assert f"{data['cycles']:,}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("extra", "what"),
    [
        (["--rules", "astra-sim", "-p", "ddp"], "--parallel: has no effect with --rules astra-sim; leave it out"),
        (["--backend", "congestion-aware"], "--backend: has no effect without --rules"),
        (["--rules", "astra-sim", "--backend", "ns3"], "'ns3' is not known"),
    ],
)
def test_what_has_no_effect_is_refused(
    study: list[str], capsys: pytest.CaptureFixture[str], extra: list[str], what: str
) -> None:
    assert run([*study, *extra]) == 2
    assert what in capsys.readouterr().err
