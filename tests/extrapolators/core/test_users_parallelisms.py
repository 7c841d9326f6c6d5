"""Parallelisms and pipeline schedules of a user's, each one file: run through the command line, with tp, and by ``memory``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from triosim.cli import run

ROOT = Path(__file__).resolve().parents[3]
TRACE = str(ROOT / "examples" / "traces" / "gpt2_a100_fake.json.gz")
SCHEDULE = f"{ROOT}/examples/plugins/eager_1f1b.py:Eager1F1B"
TENSOR = ("--tp-style", "megatron")

PARALLELISM = '''
"""Post-local SGD: all-reduces gradients in the first steps, and then averages parameters once in so many."""

from triosim.config import Option
from triosim.extrapolators import Extrapolator, TrainingHooks, with_hooks
from triosim.tasks import AllReduce, Wait


class PostLocal(Extrapolator):
    axis = "post-local"
    identical_ranks = True
    options = (
        Option("warm_up", "whole", 1, "In how many first steps gradients are reduced.", least=0),
        Option("period", "whole", 2, "After how many later steps parameters are averaged."),
    )

    def transform(self, program, mesh):
        def make(stage, gradients):
            nbytes = sum(one.nbytes for one in gradients), sum(one.nbytes for one in stage.parameters)
            return lambda context: Averaging(context, self.config, *nbytes)

        return with_hooks(program, self.axis, make)


class Averaging(TrainingHooks):
    def __init__(self, context, config, gradients, parameters):
        super().__init__(context)
        self.config, self.gradients, self.parameters, self.steps = config, gradients, parameters, 0

    def before_optimizer(self):
        if self.steps < self.config.warm_up:
            yield Wait(((yield AllReduce(self.gradients, self.group)),))

    def after_optimizer(self):
        self.steps += 1
        late = self.steps - self.config.warm_up
        if late > 0 and late % self.config.period == 0:
            yield Wait(((yield AllReduce(self.parameters, self.group)),))
'''


@pytest.fixture
def parallelism(tmp_path: Path) -> str:
    assert len(PARALLELISM.splitlines()) <= 60
    (tmp_path / "post_local.py").write_text(PARALLELISM)
    return f"{tmp_path}/post_local.py:PostLocal"


def simulated(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run(["simulate", TRACE, *arguments, "--format", "json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert not [note for note in found["notes"] if "no effect" in note or "nobody knows" in note]
    return found


def test_a_parallelism_reads_its_options(parallelism: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--iterations", "6", "--option", "warm_up=2", "--option", "period=4")
    found = simulated(capsys, "-p", f"{parallelism}=2", *options)
    (reduced,) = {one["kind"] for one in found["collectives"]}
    assert reduced == "all_reduce"
    assert sum(one["count"] for one in found["collectives"]) == pytest.approx((2 + 1) / 6)  # a step


def test_a_parallelism_combines_with_tp_and_folds(parallelism: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = simulated(capsys, "-p", f"{parallelism}=2,tp=2", *TENSOR, "--fold", "--iterations", "2")
    assert {one["axis"] for one in found["collectives"]} == {"post-local", "tp"}


def test_an_option_that_a_parallelism_does_not_declare_is_refused(
    parallelism: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["simulate", TRACE, "-p", f"{parallelism}=2", "--option", "periods=4"]) == 2
    assert "did you mean 'period'?" in capsys.readouterr().err


def test_the_memory_of_a_parallelism_is_that_of_a_training_step(
    parallelism: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["memory", TRACE, "--format", "json", *TENSOR]
    assert run([*arguments, "-p", f"{parallelism}=2,tp=2"]) == 0
    own = json.loads(capsys.readouterr().out)
    assert run([*arguments, "-p", "dp=2,tp=2"]) == 0
    assert own["memory"] == json.loads(capsys.readouterr().out)["memory"]


def test_a_schedule_reads_its_options_and_combines_with_tp(capsys: pytest.CaptureFixture[str]) -> None:
    """One pass ahead of the next rank is 1F1B itself."""
    step = ("-p", "pp=4,tp=2", "--micro-batches", "8", "-b", "8", *TENSOR)
    own = simulated(capsys, *step, "--schedule", SCHEDULE, "--option", "ahead=1")
    known = simulated(capsys, *step, "--schedule", "1f1b")
    assert own["step_time_s"] == known["step_time_s"]


def test_a_schedule_that_runs_ahead_holds_more(capsys: pytest.CaptureFixture[str]) -> None:
    peaks = []
    for schedule in (SCHEDULE, "1f1b"):
        arguments = ["-p", "pp=4", "--micro-batches", "8", "-b", "8", "--schedule", schedule, "--format", "json"]
        assert run(["memory", TRACE, *arguments]) == 0
        peaks.append(json.loads(capsys.readouterr().out)["memory"][1]["activation_bytes"])
    assert peaks[0] > peaks[1]


def test_a_schedule_is_shown_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schedule", SCHEDULE, "--stages", "4", "--micro-batches", "8", "--format", "json"]) == 0
    assert [rank["micro_batches_held"] for rank in json.loads(capsys.readouterr().out)["ranks"]] == [7, 5, 3, 1]


def test_a_schedule_in_which_something_is_missing_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "half.py").write_text(
        "from triosim.extrapolators import Action, PipelineSchedule, ScheduleTable\n\n\n"
        "class Half(PipelineSchedule):\n"
        "    def table(self, ranks, micro_batches):\n"
        '        return ScheduleTable.of([[Action(rank, "forward", 0)] for rank in range(ranks)][:1])\n'
    )
    schedule = ("-p", "pp=2", "--micro-batches", "2", "-b", "2", "--schedule", f"{tmp_path}/half.py:Half")
    assert run(["simulate", TRACE, *schedule]) == 2
    assert "is for 1 pipeline ranks, not 2" in capsys.readouterr().err
