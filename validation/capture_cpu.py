"""A capture on the CPU against the step itself: operator times against the step's, bytes against PyTorch's.

One thread; the medians of steps with and without the profiler that come in turns, of several captures each. ``python -m
validation.capture_cpu`` prints each capture with its spread. Needs torch, torchvision and transformers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from statistics import median
from typing import Any, NamedTuple

from validation.report import DataAbsent, Row, relative

#: Minutes, with PyTorch: ``python -m validation`` runs this only where it is asked for.
TAKES_LONG = True

#: How many captures of each model, and in each how many steps with and without the profiler.
CAPTURES, STEPS = 3, 7


class Found(NamedTuple):
    """One capture: seconds of a step, of its operators and of the host between them, and what the profiler adds."""

    model: str
    step: float
    operators: float
    with_gaps: float
    overhead: float
    spread: float
    bytes_off: int


def rows() -> list[Row]:
    found = measured()
    names = sorted({one.model for one in found})
    sums = [median(one.operators / one.step for one in found if one.model == name) for name in names]
    off = sum(one.bytes_off for one in found)
    return [
        Row("operator times of a capture on the CPU", "the step without a profiler", len(found), worst(sums), 0.05),
        Row("bytes of parameters, gradients, states", "PyTorch's own count", len(found), float(off), 0.0),
    ]


def worst(ratios: list[float]) -> float:
    return max(relative(ratio, 1.0) for ratio in ratios)


def measured() -> list[Found]:
    try:
        import torch
        import transformers  # noqa: F401
    except ImportError as error:
        raise DataAbsent(f"{error.name} is not installed") from None
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [captured(make) for make in (resnet50, gpt2) for _ in range(CAPTURES)]
    finally:
        torch.set_num_threads(threads)


def captured(make: Callable[[], tuple[Any, Callable[[], Any]]]) -> Found:
    import torch

    from triosim.tracer import capture

    torch.manual_seed(0)
    model, loss = make()
    optimizer = torch.optim.AdamW(model.parameters())
    with capture(model, optimizer, skip=2, steps=STEPS) as block:
        for _ in range(4 + 2 * STEPS):
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()
    trace, cost = block.trace, block.cost
    assert cost.plain is not None
    assert cost.overhead is not None
    states = sum(value.nbytes for state in optimizer.state.values() for value in state.values())
    parameters = sum(one.nbytes for one in model.parameters())
    wanted = {"parameter": parameters, "gradient": parameters, "optimizer_state": states}
    off = 0
    for category, nbytes in wanted.items():
        storages = {
            tensor.storage: tensor.nbytes
            for tensor in trace.tensors.values()
            if tensor.category == category and (tensor.parameter is not None or category == "parameter")
        }
        off += abs(sum(storages.values()) - nbytes)
    with_gaps = sum(operator.host_seconds or 0.0 for operator in trace.operators)
    name = type(model).__name__
    return Found(name, cost.plain, trace.seconds, with_gaps, cost.overhead, cost.spread, off)


def resnet50() -> tuple[Any, Callable[[], Any]]:
    import torch

    try:
        from triosim.tracer.device.script_patches import complete_torchvision

        complete_torchvision()
        import torchvision
    except ImportError as error:
        raise DataAbsent(f"{error.name} is not installed") from None
    model = torchvision.models.resnet50()
    inputs, targets = torch.randn(4, 3, 224, 224), torch.randint(0, 1000, (4,))
    return model, lambda: torch.nn.functional.cross_entropy(model(inputs), targets)


def gpt2() -> tuple[Any, Callable[[], Any]]:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(
        GPT2Config(n_layer=6, n_embd=384, n_head=6, vocab_size=5000, bos_token_id=0, eos_token_id=0)
    )
    words = torch.randint(0, 5000, (2, 128))
    return model, lambda: model(input_ids=words, labels=words).loss


def main() -> int:
    for one in measured():
        print(
            f"{one.model}: step {1e3 * one.step:.0f} ms (middle half within {100 * one.spread:.1f}%), operators "
            f"{100 * one.operators / one.step:.1f}%, with the host between them {100 * one.with_gaps / one.step:.1f}%, "
            f"profiler {100 * one.overhead:+.1f}%, bytes off {one.bytes_off}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
