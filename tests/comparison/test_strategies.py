"""compare: each strategy runs with the options that it reads, and what comes back is shown in a notebook too."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import traces

from triosim import cli, save_trace, simulate
from triosim.comparison.strategies import Comparison, compare
from triosim.errors import OptionError, TriosimError

TRACE = traces.transformer(batch=8, blocks=4)
SYSTEM = "ring(4, bandwidth=1 GB/s)"


def runs(comparison: Comparison) -> dict[str, float]:
    return {run.label: run.result.step_time_s for run in comparison.runs if run.result is not None}


def test_an_option_reaches_the_strategies_that_read_it() -> None:
    found = compare(TRACE, 4, topology=SYSTEM, schedule="1f1b", options={"prefetch": "0"}, recompute="full")
    given = {"topology": SYSTEM, "recompute": "full"}
    assert runs(found)["fsdp=4"] == simulate(TRACE, "fsdp=4", options={"prefetch": "0"}, **given).step_time_s
    assert (
        runs(found)["pp=4 --micro-batches 4"]
        == simulate(TRACE, "pp=4", micro_batches=4, schedule="1f1b", **given).step_time_s
    )
    assert {"dp=4", "ddp=4", "tp=4 --tp-style megatron"} < runs(found).keys()  # to which neither means anything
    assert not [note for run in found.runs if run.result for note in run.result.notes if "no effect" in note]


def test_conditions_hold_for_all_strategies() -> None:
    slow = {"slow_gpus": {1: 3.0}}
    found = runs(compare(TRACE, 4, topology=SYSTEM, conditions=slow))
    for parallel in ("dp=4", "zero1=4"):
        assert found[parallel] == simulate(TRACE, parallel, topology=SYSTEM, conditions=slow).step_time_s


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
    assert "<td>tp=2 --tp-style megatron</td>" in html


def test_the_command_takes_conditions_schedules_and_prices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Four GPUs at 3.60 an hour cost 0.004 a second."""
    file = tmp_path / "trace.json"
    save_trace(TRACE, file)
    words = "-n 4 --schedule 1f1b --recompute selective --slow-gpus 1=2 --price 3.6 --gradient-dtype bf16"
    command = ["compare", str(file), *words.split(), "-t", SYSTEM]
    assert cli.run([*command, "--format", "json"]) == 0
    rows = {row["label"]: row for row in json.loads(capsys.readouterr().out)["runs"]}
    assert rows["ddp=4"]["cost"] == pytest.approx(0.004 * rows["ddp=4"]["step_time_s"])
    assert cli.run(command) == 0
    assert "cost: of a million tokens" in " ".join(capsys.readouterr().out.split())


def test_the_command_of_a_strategy_simulates_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What ``compare`` prints can be typed, and its labels behind -p; the table is at most 80 wide."""
    file = tmp_path / "trace.json"
    save_trace(TRACE, file)
    assert cli.run(["compare", str(file), "-n", "4", "-t", SYSTEM, "--format", "json"]) == 0
    rows = [row for row in json.loads(capsys.readouterr().out)["runs"] if "command" in row]
    for row in rows:
        typed = ["simulate", str(file), "-t", SYSTEM, "--format", "json", "-p", *row["label"].split()]
        assert cli.run(typed) == 0
        assert json.loads(capsys.readouterr().out)["step_time_s"] == row["step_time_s"]
        assert cli.run([*shlex.split(row["command"])[1:], "--format", "json"]) == 0
        assert json.loads(capsys.readouterr().out)["step_time_s"] == row["step_time_s"]
    assert cli.run(["compare", str(file), "-n", "4", "-t", SYSTEM]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert "".join(rows[0]["command"].split()) in "".join(shown.split())


def test_a_pipeline_waits_and_says_so(tmp_path: Path) -> None:
    """Over links that carry its messages in less than a thousandth of the step, what a pipeline exposes is waiting."""
    found = compare(traces.mlp(), 2, topology="ring(2, bandwidth=1000 GB/s)")
    row = next(row for row in found.to_dict()["runs"] if row["label"] == "pp=2 --micro-batches 1")
    moving = row["exposed_communication_s"] - row["exposed_waiting_s"]
    assert row["exposed_waiting_s"] > 0.25 * row["step_time_s"]
    assert moving < 1e-3 * row["step_time_s"]


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"options": {"prefetch": "x"}}, "--option prefetch: 'x' is not a whole number"),  # only fsdp reads it
        ({"options": {"overlap": "maybe"}}, "--option overlap: 'maybe' is not known"),  # tp, alone and combined
        ({"virtual_stages": 3}, "'1f1b' has no virtual stages"),
        ({"schedule": "interleaved", "virtual_stages": 99}, "pipeline stages are asked for"),
        ({"bucket_size": -1}, "bytes; give 0 or more"),
    ],
)
def test_an_option_with_which_none_can_run_that_reads_it_is_an_error(option: dict[str, Any], said: str) -> None:
    with pytest.raises(TriosimError, match=said):
        compare(TRACE, 4, topology=SYSTEM, **option)


def test_a_strategy_that_sizes_rule_out_has_a_reason_and_the_others_run() -> None:
    """An interleaved schedule has no single micro-batch, and 4 are no problem."""
    found = compare(TRACE, 4, topology=SYSTEM, schedule="interleaved", virtual_stages=2)
    assert {run.label for run in found.runs if run.result is None} == {"pp=4 --micro-batches 1"}


def test_pipelines_divide_a_batch_as_often_as_it_can_be() -> None:
    """A batch of 8 has no 16 micro-batches."""
    found = compare(TRACE, 4, topology=SYSTEM, schedule="1f1b")
    labels = {run.label for run in found.runs if run.strategy.parallel == "pp=4"}
    assert labels == {f"pp=4 --micro-batches {count}" for count in (1, 4, 8)}
    assert all(run.result is not None for run in found.runs)


def test_a_gpu_that_no_strategy_has_is_named_with_those_that_there_are() -> None:
    with pytest.raises(TriosimError, match="no GPU 9; name one from 0 to 3"):
        compare(TRACE, 4, topology=SYSTEM, conditions={"slow_gpus": {9: 2.0}})


def test_draws_order_strategies_by_the_median_step() -> None:
    drawn: dict[str, Any] = {"conditions": {"stragglers": "uniform,spread=0.5"}, "draws": 5}
    found = compare(TRACE, 2, topology="ring(2, bandwidth=1 GB/s)", **drawn)
    one = simulate(TRACE, "ddp=2", topology="ring(2, bandwidth=1 GB/s)", **drawn)
    rows = {row["label"]: row for row in found.to_dict()["runs"]}
    assert one.data.draws is not None
    assert rows["ddp=2"]["draws"]["p50_s"] == one.data.draws.p50_s
    assert rows["ddp=2"]["throughput_samples_per_s"] == pytest.approx(16 / one.data.draws.p50_s)
    rates = [run.throughput for run in found.runs]
    assert rates == sorted(rates, reverse=True)
    speeds = {run.label: run.throughput for run in found.runs}
    assert rows["ddp=2"]["speed_up"] == pytest.approx(speeds["ddp=2"] / speeds["single"])
    assert "median, 5%, 95%" in str(found)


def test_draws_of_a_run_without_chance_are_refused() -> None:
    with pytest.raises(TriosimError, match="nothing in this run is drawn at random"):
        compare(TRACE, 2, topology="ring(2, bandwidth=1 GB/s)", draws=3)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"recompute": "foo"}, "recompute: unknown policy 'foo'"),
        ({"recompute": "save=mm/x"}, "recompute: 'mm/x' names no operators"),
        ({"conditions": {"stragglers": "foo"}}, "--stragglers: distribution: unknown value 'foo'"),
        ({"conditions": {"events": ["gpu=3"]}}, "--event: 'gpu=3' is not an event"),
        ({"conditions": {"compute_slowdown": "0.5"}}, "--compute-slowdown: '0.5' is not a factor"),
        ({"operator_times": "none.csv"}, "none.csv: cannot be read"),
    ],
)
def test_a_value_that_cannot_be_is_refused_before_the_first_strategy(option: dict[str, Any], said: str) -> None:
    with pytest.raises(TriosimError) as error:
        compare(TRACE, 4, started=lambda strategy: pytest.fail(strategy.label), topology=SYSTEM, **option)
    assert str(error.value).startswith(said)


def test_compare_refuses_what_it_chooses_itself_and_a_number_that_is_none() -> None:
    for given, said in (
        ({"parallel": "dp"}, "parallel: has no effect in compare"),
        ({"micro_batches": 2}, "micro_batches"),
    ):
        with pytest.raises(OptionError, match=said):
            compare(TRACE, 4, topology=SYSTEM, **given)
    with pytest.raises(OptionError, match="gpus: 'eight' is not a whole number"):
        compare(TRACE, "eight", topology=SYSTEM)  # type: ignore[arg-type]
    assert compare(TRACE, "2", topology="ring(2, bandwidth=1 GB/s)").gpus == 2  # type: ignore[arg-type]  # as in simulate


def test_a_report_refuses_options_that_it_does_not_have(tmp_path: Path) -> None:
    result = simulate(TRACE)
    with pytest.raises(OptionError, match="the report 'csv' has no option 'foo'"):
        result.write("csv", tmp_path / "x.csv", foo=1)
    with pytest.raises(OptionError, match="path: 3 is not a path"):
        result.write("csv", 3)  # type: ignore[arg-type]
    assert not (tmp_path / "x.csv").exists()
