"""A script captured without a GPU is predicted at another batch size as it would be captured there."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from triosim.capture.one_rank import capture_fake
from triosim.sharding.reshape import rescaled
from triosim.trace import Operator, Trace
from triosim.tracer.device.script_patches import complete_torchvision  # it needs PyTorch

TRAIN = Path(__file__).resolve().parents[2] / "examples" / "train"
LANGUAGE = "language.py --layers 1 --model"
VISION = "vision.py --image-size 64 --model"


def captured(command: str) -> Trace:
    script, *arguments = command.split()
    complete_torchvision()
    pytest.importorskip("torchvision" if script == "vision.py" else "transformers")
    return capture_fake(TRAIN / script, arguments, gpu="A100")


def shapes(operators: tuple[Operator, ...] | list[Operator]) -> list[object]:
    return [(o.name, o.layer, [t.shape for t in o.inputs], [t.shape for t in o.outputs]) for o in operators]


@pytest.mark.parametrize(
    ("command", "old", "new"),
    [
        (f"{LANGUAGE} gpt2 --sequence 6 --checkpoint", 6, 10),  # as many samples as tokens
        (f"{LANGUAGE} llama-1b --sequence 24 --dtype bfloat16", 8, 10),  # as many as heads of keys
        (f"{LANGUAGE} bert --sequence 24 --amp bfloat16", 12, 10),  # as many as heads
        (f"{VISION} resnet18", 64, 10),  # as many as channels
    ],
)
def test_another_batch_size(command: str, old: int, new: int) -> None:
    here, there = (captured(f"{command} --batch-size {size}") for size in (old, new))
    found = rescaled(here.operators, old, new)
    assert found.notes == ()
    assert shapes(found.operators) == shapes(there.operators)


@pytest.mark.parametrize(("model", "kernel"), [("llama-1b --dtype bfloat16", "flash"), ("gpt2", "efficient")])
def test_a_causal_model_takes_the_attention_of_a_gpu_without_a_mask(model: str, kernel: str) -> None:
    """transformers looks whether texts are packed into a sample, and writes out no mask where none are."""
    trace = captured(f"{LANGUAGE} {model} --batch-size 2 --sequence 24")
    (attention,) = [o for o in trace.operators if "dot_product" in o.name and o.phase == "forward"]
    assert attention.name == f"aten::_scaled_dot_product_{kernel}_attention"
    assert attention.attributes["is_causal"] is True
    assert len(attention.inputs) == 3
    waits = [mark for mark in trace.marks if mark.kind == "synchronize"]
    assert len(waits) == 1  # it reads what it found
