"""A loop that waits for a value that is never computed ends, with its line; one that only reads many values goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from triosim.errors import CaptureError  # noqa: E402
from triosim.tracer.fake_device import FakeDevice  # noqa: E402
from triosim.tracer.recorder import endless_loops as recorder_reads  # noqa: E402
from triosim.tracer.script_runner import run_script  # noqa: E402

SCRIPT = """
import torch
def small(loss):
    return loss.item() < 0
layer = torch.nn.Linear(4, 4).cuda()
optimizer = torch.optim.{optimizer}(layer.parameters(), lr=0.1)
def closure():
    loss = layer(torch.ones(2, 4, device="cuda")).square().sum()
    loss.backward()
    return loss
for step in range(2):
    loss = layer(torch.ones(2, 4, device="cuda")).square().sum()
    {loop}
        {body}
    loss.backward()
    optimizer.step(closure)
"""
OPERATORS_OF_A_PASS = "[(loss := loss + layer(torch.ones(2, 4, device='cuda')).square().sum()) for _ in range(8)]"


def run(folder: Path, loop: str, body: str, optimizer: str = "SGD") -> list[str]:
    path = folder / "loop.py"
    path.write_text(SCRIPT.format(loop=loop, body=body, optimizer=optimizer), encoding="utf-8")
    with FakeDevice("H100") as device:
        run_script(path, [], device, skip=1)
        return device.notes


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_reads, "MOST_READS", 300)
    monkeypatch.setattr(recorder_reads, "MOST_PASSES", 30)


@pytest.mark.filterwarnings("ignore::triosim.errors.CaptureWarning")
@pytest.mark.parametrize(("body", "count"), [("pass", 300), ("loss = loss * 0.5", 300), (OPERATORS_OF_A_PASS, 30)])
def test_a_loop_that_waits_for_a_value_in_a_function_ends_with_its_line(tmp_path: Path, body: str, count: int) -> None:
    with pytest.raises(CaptureError) as raised:
        run(tmp_path, "while not small(loss):", body)
    assert str(raised.value).startswith(
        f"loop.py:4: a loop does not end: it read a tensor's value, which is never computed, {count} times"
    )
    assert "\n" not in str(raised.value)


@pytest.mark.filterwarnings("ignore::triosim.errors.CaptureWarning")
@pytest.mark.parametrize(
    ("loop", "body"),
    [
        ("while loss.item() > 0:", "pass"),
        ("while not loss.item() < 0:", "pass"),
        ("while loss > 0:", "optimizer.step(closure)"),
        ("while True:", "value = loss.item(); optimizer.step(closure)\n        if value < 0.1: break"),
        ("while True:", "if loss.item() > 9: break"),
    ],
)
def test_a_loop_that_says_what_it_waits_for_ends(tmp_path: Path, loop: str, body: str) -> None:
    assert any(note.endswith("to end the loop after 100 turns") for note in run(tmp_path, loop, body))


@pytest.mark.filterwarnings("ignore::triosim.errors.CaptureWarning")
def test_one_that_reads_a_value_of_each_of_many_tensors_goes_on(tmp_path: Path) -> None:
    """Of 200 in each of two steps, with an operator between any two."""
    notes = run(tmp_path, "for _ in range(200):", "(loss + 1).item()")
    assert [note.partition(": ")[0] for note in notes] == ["loop.py:14"]


@pytest.mark.filterwarnings("ignore::triosim.errors.CaptureWarning")
def test_an_optimizer_ends_its_own_loops(tmp_path: Path) -> None:
    """LBFGS reads losses and directions in each of its iterations."""
    assert run(tmp_path, "if True:", "pass", "LBFGS")


@pytest.mark.filterwarnings("ignore::triosim.errors.CaptureWarning")
def test_a_script_may_look_at_each_of_ten_thousand_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    notes = run(tmp_path, "for correct in (loss.detach().expand(11_000) > 0).cpu():", "int(correct)")
    assert any("reads a tensor's value" in note for note in notes)
