"""A training script is run as Python would run it, until the steps that were wanted are over."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from triosim.errors import CaptureError, OptionError  # noqa: E402
from triosim.tracer.script_runner import run_script  # noqa: E402
from triosim.tracer.steps import StepObservations, unwrapped  # noqa: E402

TRAINING = """
import sys, torch
from torch import nn
model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
loss = nn.MSELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range({steps}):
    optimizer.zero_grad()
    {accumulate}
        loss(model(torch.ones(6, 4)), torch.ones(6, 2)).backward()
    optimizer.step()
    print("step", step)
print("over")
"""


class Told:
    """An observer that writes down what it is told, and who was observed by then, whom it may keep alive."""

    def __init__(self, *, keeps: bool = True) -> None:
        self.keeps = keeps
        self.calls: list[tuple[str, int]] = []
        self.seen: StepObservations | None = None
        self.model: torch.nn.Module | None = None
        self.optimizers: list[torch.optim.Optimizer] = []

    def step_begins(self, number: int, observed: StepObservations) -> None:
        self.calls.append(("begins", number))

    def step_ends(self, number: int, observed: StepObservations) -> None:
        self.calls.append(("ends", number))
        self.seen = observed
        if self.keeps:
            self.model, self.optimizers = observed.model, observed.optimizers


def script(folder: Path, text: str, name: str = "train.py") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def training(folder: Path, steps: int = 10, accumulate: str = "if True:") -> Path:
    return script(folder, TRAINING.format(steps=steps, accumulate=accumulate))


def test_a_script_is_stopped_when_the_wanted_steps_are_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = Told()
    run_script(training(tmp_path), [], told, skip=2, steps=2)
    assert told.calls == [("begins", 0), ("ends", 0), ("begins", 1), ("ends", 1)]
    assert capsys.readouterr().out.split("\n")[:3] == ["step 0", "step 1", "step 2"]  # and not the fourth's, nor "over"


def test_the_model_is_told_from_the_loss_and_the_batch_from_its_input(tmp_path: Path) -> None:
    told = Told()
    observed = run_script(training(tmp_path), [], told)
    assert [type(part).__name__ for part in told.model or ()] == ["Linear", "Linear"]
    assert observed.batch_size == 6
    assert [type(optimizer) for optimizer in told.optimizers] == [torch.optim.SGD]


def test_backward_passes_before_one_step_of_the_optimizer_are_one_step(tmp_path: Path) -> None:
    told = Told()
    observed = run_script(training(tmp_path, 1, "for _ in range(3):"), [], told)
    assert told.calls == [("begins", 0), ("ends", 0)]
    assert observed.batch_size == 18


def test_samples_of_an_evaluation_are_not_those_of_the_step(tmp_path: Path) -> None:
    evaluated = "with torch.no_grad():\n        model(torch.ones(100, 4))\n    for _ in range(3):"
    observed = run_script(training(tmp_path, 1, evaluated), [], Told())
    assert observed.batch_size == 18


def test_a_deleted_model_is_freed_and_the_next_one_trains_in_steps_too(tmp_path: Path) -> None:
    text = """
import weakref, torch
def train(width):
    model = torch.nn.Linear(width, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(width, width)).sum().backward()
    optimizer.step()
    return weakref.ref(model), weakref.ref(optimizer)
first = train(3)
assert [part() for part in first] == [None, None]
train(2)
"""
    told = Told(keeps=False)
    observed = run_script(script(tmp_path, text), [], told, steps=3, least=2)
    assert told.calls == [("begins", 0), ("ends", 0), ("begins", 1), ("ends", 1), ("begins", 2)]
    assert (observed.model, observed.model_name, observed.optimizers) == (None, "Linear", [])


def test_the_script_is_main_with_its_own_arguments_and_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script(tmp_path, "value = 7", "beside_the_script.py")
    path = script(
        tmp_path,
        "import sys, os, beside_the_script\n"
        "assert sys.modules['__main__'].__dict__ is globals()\n"
        "if __name__ == '__main__':\n"
        "    print(sys.argv, beside_the_script.value, __file__, os.getcwd())\n",
    )
    before = sys.modules["__main__"], sys.argv, list(sys.path)
    monkeypatch.chdir(tmp_path.parent)
    with pytest.raises(CaptureError):
        run_script(path, ["--lr", "0.1"], Told())
    assert capsys.readouterr().out.strip() == f"{[str(path), '--lr', '0.1']} 7 {path} {tmp_path.parent}"
    assert (sys.modules["__main__"], sys.argv, sys.path) == before


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("pass", "the script ended before an optimizer's step() returned"),
        ("import sys; sys.exit()", "the script exited with status 0 before"),
        ("raise SystemExit('no data')", "the script exited before"),
        ("import torch; torch.zeros(3) @ torch.zeros(4)", "the script raised RuntimeError before"),
        ("def f(:", "the script raised SyntaxError before"),
    ],
)
def test_a_script_without_a_step_is_an_error_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    path = script(tmp_path, text)
    with pytest.raises(CaptureError, match="the capture has no step") as raised:
        run_script(path, [], Told())
    assert str(raised.value).startswith(f"{path}: ")
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_traceback_is_the_script_s_without_our_frames(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = script(tmp_path, "def load():\n    raise ValueError('bad data')\n\nload()\n")
    with pytest.raises(CaptureError, match="raised ValueError"):
        run_script(path, [], Told())
    shown = capsys.readouterr().err.splitlines()
    assert shown[0] == "Traceback (most recent call last):"
    assert shown[1] == f'  File "{path}", line 4, in <module>'
    assert shown[-1] == "ValueError: bad data"
    assert not [line for line in shown if f"tracer{os.sep}script.py" in line]


def test_one_that_ends_too_early_is_told_how_many_steps_it_had(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match=r"ended after 3 of 7 steps; .*--skip and --steps"):
        run_script(training(tmp_path, 3), [], Told(), skip=2, steps=5)
    told = Told()
    run_script(training(tmp_path, 3), [], told, skip=2, steps=5, least=1)
    assert told.calls[:2] == [("begins", 0), ("ends", 0)]


def test_a_script_that_catches_everything_does_not_lose_its_step(tmp_path: Path) -> None:
    text = TRAINING.format(steps=3, accumulate="if True:")
    caught = "    try: optimizer.step()\n    except BaseException: pass"
    told = Told()
    run_script(script(tmp_path, text.replace("    optimizer.step()", caught)), [], told)
    assert told.calls == [("begins", 0), ("ends", 0)]


def test_ctrl_c_goes_through(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_script(script(tmp_path, "raise KeyboardInterrupt"), [], Told())


def test_no_hook_is_left_behind(tmp_path: Path) -> None:
    from torch.nn.modules import module
    from torch.optim import optimizer

    def hooks() -> list[int]:
        return [
            len(found)
            for found in (
                module._global_forward_hooks,
                module._global_forward_pre_hooks,
                optimizer._global_optimizer_pre_hooks,
                optimizer._global_optimizer_post_hooks,
            )
        ]

    before = hooks()
    run_script(training(tmp_path), [], Told())
    with pytest.raises(CaptureError):
        run_script(script(tmp_path, "raise ValueError"), [], Told())
    assert hooks() == before


def test_of_nested_optimizers_the_outer_one_ends_the_step(tmp_path: Path) -> None:
    """As PyTorch's ZeRO optimizer does, whose step calls that of the optimizer in it."""
    text = """
import torch
weight = torch.nn.Parameter(torch.ones(2))
class Outer(torch.optim.Optimizer):
    def __init__(self):
        super().__init__([weight], {})
        self.inner = torch.optim.SGD([weight], lr=0.1)
    def step(self, closure=None):
        self.inner.step()
        weight.data.add_(1.0)
weight.sum().backward()
Outer().step()
"""
    told = Told()
    run_script(script(tmp_path, text), [], told)
    assert told.calls == [("begins", 0), ("ends", 0)]
    assert [type(optimizer).__name__ for optimizer in told.optimizers] == ["Outer"]


def test_there_must_be_a_script(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="there is no such script"):
        run_script(tmp_path / "none.py", [], Told())
    with pytest.raises(OptionError, match="is a folder"):
        run_script(tmp_path, [], Told())


def test_a_wrapped_model_is_found_inside() -> None:
    model: Any = torch.nn.Linear(2, 2)
    assert unwrapped(torch.nn.DataParallel(model)) is model
    assert unwrapped(model) is model


TWO = """
import torch
first, second = (torch.nn.Linear(4, 4) for _ in range(2))
optimizers = [torch.optim.AdamW(one.parameters()) for one in (first, second)]
for step in range({steps}):
    for one, optimizer in zip((first, second), optimizers):
        one(torch.ones(2, 4)).sum().backward()
        optimizer.step()
"""


def test_a_step_in_which_another_optimizer_makes_its_states_is_skipped_too(tmp_path: Path) -> None:
    """The first ends steps: with one skipped, the second would be called for the first time in the step that counts."""
    states: list[int] = []

    class Counting(Told):
        def step_begins(self, number: int, observed: StepObservations) -> None:
            super().step_begins(number, observed)
            states.append(len(observed.optimizers))

    told = Counting()
    run_script(script(tmp_path, TWO.format(steps=4)), [], told, skip=1, steps=2)
    assert told.calls == [("begins", 0), ("begins", 0), ("ends", 0), ("begins", 1), ("ends", 1)]
    assert states == [1, 2, 2]
    with pytest.raises(CaptureError, match="ended after 2 of 3 steps"):
        run_script(script(tmp_path, TWO.format(steps=2)), [], Told(), skip=1)
    run_script(script(tmp_path, TWO.format(steps=2)), [], Told())  # the very first step is what was asked for
