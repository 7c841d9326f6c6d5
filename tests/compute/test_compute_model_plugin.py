"""A compute model of a user's is one file outside of the package, which the command line runs beside every parallelism."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from triosim.cli import run

GPT2 = Path(__file__).resolve().parents[2] / "examples" / "traces" / "gpt2_a100_fake.json.gz"

#: Twice the bytes take twice as long, at a bandwidth that ``--option gigabytes=...`` gives.
PLUGIN = """
import numpy as np
from triosim.compute import ComputeModel, Estimates

class Bandwidth(ComputeModel):
    def __init__(self, gigabytes: str = "1000") -> None:
        self.rate = 1e9 * float(gigabytes)

    def estimate(self, operators, gpu=""):
        nbytes = [1.0 + sum(tensor.nbytes for tensor in (*one.inputs, *one.outputs)) for one in operators]
        said = ["bandwidth"] * len(operators)
        return Estimates(np.array(nbytes) / self.rate, np.full(len(operators), 0.5), said)
"""


def simulated(tmp_path: Path, *arguments: str) -> dict[str, object]:
    file = tmp_path / "bandwidth.py"
    file.write_text(PLUGIN)
    out = tmp_path / "result.json"
    model = ["--compute-model", f"{file}:Bandwidth"]
    assert run(["simulate", str(GPT2), *model, *arguments, "--output", str(out), "--quiet"]) == 0
    found: dict[str, object] = json.loads(out.read_text())
    return found


def test_a_plugin_prices_the_shards_of_tp_and_the_result_names_it(tmp_path: Path) -> None:
    result = simulated(tmp_path, "--parallel", "tp=2")
    notes = "\n".join(map(str, result["notes"]))  # type: ignore[call-overload]
    assert "bandwidth" in json.dumps(result)
    assert "no effect" not in notes
    assert "auto" not in notes


def test_a_plugin_takes_an_option_of_its_own(tmp_path: Path) -> None:
    """Its rate cancels in ratios of two sizes; a batch of half the bytes takes half as long at any rate."""
    slow = simulated(tmp_path, "--parallel", "tp=2", "--option", "gigabytes=1")
    fast = simulated(tmp_path, "--parallel", "tp=2", "--option", "gigabytes=2000")
    assert slow["step_time_s"] == pytest.approx(fast["step_time_s"], rel=1e-9)
    assert not [note for note in slow["notes"] if "gigabytes" in str(note)]  # type: ignore[attr-defined]


def test_memory_is_the_same_with_a_plugin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bandwidth.py").write_text(PLUGIN)
    arguments = ["memory", str(GPT2), "--parallel", "tp=2"]
    assert run(arguments) == 0
    shown = capsys.readouterr()
    assert "no effect" not in shown.out + shown.err
