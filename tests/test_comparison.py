"""compare: each strategy runs with the options that it reads, and what comes back is shown in a notebook too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import traces

from triosim import cli, save_trace, simulate
from triosim.comparison import Comparison, compare
from triosim.errors import TriosimError

TRACE = traces.transformer(batch=8, blocks=4)
SYSTEM = "ring(4, bandwidth=1 GB/s)"


def runs(comparison: Comparison) -> dict[str, float]:
    return {run.label: run.result.step_time_s for run in comparison.runs if run.result is not None}


def test_an_option_reaches_the_strategies_that_read_it() -> None:
    found = compare(TRACE, 4, topology=SYSTEM, schedule="1f1b", options={"prefetch": "0"}, recompute="full")
    given = {"topology": SYSTEM, "recompute": "full"}
    assert runs(found)["fsdp"] == simulate(TRACE, "fsdp=4", options={"prefetch": "0"}, **given).step_time_s
    assert runs(found)["pp, M=4"] == simulate(TRACE, "pp=4", micro_batches=4, schedule="1f1b", **given).step_time_s
    assert {"dp", "ddp", "tp megatron"} < runs(found).keys()  # to which neither means anything
    assert not [note for run in found.runs if run.result for note in run.result.notes if "no effect" in note]


def test_conditions_hold_for_all_strategies() -> None:
    slow = {"slow_gpus": {1: 3.0}}
    found = runs(compare(TRACE, 4, topology=SYSTEM, conditions=slow))
    for label, parallel in (("dp", "dp=4"), ("zero1", "zero1=4")):
        assert found[label] == simulate(TRACE, parallel, topology=SYSTEM, conditions=slow).step_time_s


def test_what_nobody_takes_is_refused_by_every_strategy() -> None:
    with pytest.raises(Exception, match="no part of this run takes 'prefech'"):
        compare(TRACE, 4, topology=SYSTEM, options={"prefech": "0"})


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"schedule": "1f1"}, "unknown schedule '1f1'; did you mean '1f1b'"),
        ({"schedule": "none.csv"}, "none.csv"),
        ({"gradient_dtype": "fp17"}, "fp17"),
        ({"bucket_size": "big"}, "--bucket-size: 'big'"),
    ],
)
def test_what_no_strategy_understands_is_an_error_and_no_reason(option: dict[str, str], said: str) -> None:
    with pytest.raises(TriosimError, match=said):
        compare(TRACE, 4, topology=SYSTEM, **option)


def test_a_notebook_shows_the_table() -> None:
    comparison = compare(TRACE, 2, topology="ring(2, bandwidth=1 GB/s)")
    html = comparison._repr_html_()
    assert html.count("<tr>") == 1 + len(runs(comparison))
    assert "<td>tp megatron</td>" in html


def test_the_command_takes_conditions_schedules_and_prices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Four GPUs at 3.60 an hour cost 0.004 a second."""
    file = tmp_path / "trace.json"
    save_trace(TRACE, file)
    words = "-n 4 --schedule 1f1b --recompute selective --slow-gpus 1=2 --price 3.6 --gradient-dtype bf16"
    command = ["compare", str(file), *words.split(), "-t", SYSTEM]
    assert cli.run([*command, "--format", "json"]) == 0
    rows = {row["label"]: row for row in json.loads(capsys.readouterr().out)["runs"]}
    assert rows["ddp"]["cost"] == pytest.approx(0.004 * rows["ddp"]["step_time_s"])
    assert cli.run(command) == 0
    assert "cost: of a million tokens" in " ".join(capsys.readouterr().out.split())
