"""Tensor parallelism of a model that computes in another dtype by autocast: its weights are copies of the parameters."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from traces import planned

from triosim.capture.one_rank import capture_fake
from triosim.trace import Trace

SCRIPT = Path(__file__).resolve().parents[3] / "examples" / "train" / "language.py"


def captured(*arguments: str) -> Trace:
    command = ["--model", "bert", "--layers", "1", "--batch-size", "8", "--sequence", "64", *arguments]
    return capture_fake(SCRIPT, command, gpu="A100")


@pytest.fixture(scope="module")
def both() -> tuple[Trace, Trace]:
    return captured(), captured("--amp", "bfloat16")


def shares(trace: Trace, style: str) -> list[tuple[int, ...]]:
    """A rank's parameters, in the order of the model."""
    stage = planned(trace, "tp", 2, tp_style=style).program.stages[0]
    first = {tensor.storage: number for number, tensor in enumerate(trace.parameters.values())}
    return [tensor.shape for tensor in sorted(stage.parameters, key=lambda one: first[one.storage])]


@pytest.mark.parametrize("style", ["gather", "megatron"])
def test_a_rank_has_the_same_share_of_the_parameters_as_without(both: tuple[Trace, Trace], style: str) -> None:
    plain, autocast = (sorted(shares(trace, style)) for trace in both)
    assert plain == autocast
    assert sorted(tensor.shape for tensor in both[0].parameters.values()) != plain


def test_copies_and_their_gradients_are_shares_too(both: tuple[Trace, Trace]) -> None:
    """Of each square product of 768 features, forward and backward, a rank computes a half."""
    _, autocast = both
    planned_operators = planned(autocast, "tp", 2, tp_style="megatron").program.operators
    mine = {operator.id: operator for operator in planned_operators}
    copied = [
        operator
        for operator in autocast.operators
        if operator.name == "aten::_to_copy"
        and "attention" in operator.layer
        and any(len(tensor.shape) == 2 and tensor.shape == (768, 768) for tensor in operator.outputs)
    ]
    assert {operator.phase for operator in copied} == {"forward", "backward"}
    for operator in copied:
        assert mine[operator.id].outputs[0].numel == 768 * 384, operator
