"""The time of a capture without a GPU, beside PyTorch's own memory tracker on the same steps of the same model.

Both build the model of ``examples/train`` and run two steps of it on tensors without contents: ours records the second one
whole (operators, layers, storages) and makes a trace of it; ``torch.distributed._tools.MemTracker`` follows the memory of the
second one. They come in turns, and the median of each is given, of the whole and of the second step alone. The goal is to be
faster than the tracker.

    python benchmarks/fake_capture.py [--quick]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker

from triosim.tracer.device.script_patches import complete_torchvision
from triosim.tracer.fake_device import fake_capture

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "train"))
complete_torchvision()
import hugging_face  # noqa: E402
import vision  # noqa: E402

REPEATS = 5
#: A model on a device, and its loss.
Made = tuple[torch.nn.Module, Callable[[], torch.Tensor]]


def resnet50(device: torch.device) -> Made:
    with device:
        model = vision.build("resnet50", 1000, 224)
    images = torch.randn(32, 3, 224, 224, device=device)
    labels = torch.randint(0, 1000, (32,), device=device)
    return model, lambda: torch.nn.functional.cross_entropy(model(images), labels)


def language(name: str) -> Callable[[torch.device], Made]:
    def make(device: torch.device) -> Made:
        parser = argparse.ArgumentParser()
        hugging_face.add_arguments(parser)
        args = parser.parse_args(["--model", name])
        with device:
            model: Any = hugging_face.MODELS[name][1](hugging_face.config(args)).train()
        batch = hugging_face.batch(args, model.config.vocab_size, device)
        return model, lambda: model(**batch).loss

    return make


def ours(make: Callable[[torch.device], Made]) -> tuple[float, float]:
    """Return the seconds of a whole capture and of its second step."""
    began = time.perf_counter()
    with fake_capture("H100-SXM") as capture:
        step = two_steps(*make(torch.device("cuda")))
    assert capture.trace.operators
    return time.perf_counter() - began, step


def theirs(make: Callable[[torch.device], Made]) -> tuple[float, float]:
    """Return the seconds of the whole and of the second step under PyTorch's tracker."""
    began = time.perf_counter()
    with FakeTensorMode(allow_non_fake_inputs=True):
        step = two_steps(*make(torch.device("cpu")), tracker=MemTracker())
    return time.perf_counter() - began, step


def two_steps(model: torch.nn.Module, loss: Callable[[], torch.Tensor], tracker: Any = None) -> float:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    one_step(optimizer, loss)
    began = time.perf_counter()
    if tracker is None:
        one_step(optimizer, loss)
    else:
        tracker.track_external(model, optimizer)
        with tracker:
            one_step(optimizer, loss)
        assert tracker.get_tracker_snapshot("peak")
    return time.perf_counter() - began


def one_step(optimizer: torch.optim.Optimizer, loss: Callable[[], torch.Tensor]) -> None:
    optimizer.zero_grad()
    loss().backward()
    optimizer.step()


def main() -> None:
    quick = "--quick" in sys.argv
    models = {"resnet50": resnet50, "gpt2": language("gpt2"), "llama-1b": language("llama-1b")}
    print(f"{'model':<10} {'ours':>8} {'theirs':>8} {'ratio':>6} {'step':>8} {'theirs':>8} {'ratio':>6}")
    for name, make in models.items():
        ours(make), theirs(make)  # what is imported and kept on the way counts for neither
        pairs = [(ours(make), theirs(make)) for _ in range(1 if quick else REPEATS)]
        whole, step = (median(one[0][place] for one in pairs) for place in (0, 1))
        whole_theirs, step_theirs = (median(one[1][place] for one in pairs) for place in (0, 1))
        print(
            f"{name:<10} {whole:6.2f} s {whole_theirs:6.2f} s {whole / whole_theirs:6.2f} "
            f"{step:6.2f} s {step_theirs:6.2f} s {step / step_theirs:6.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
