"""The peak of a step's memory as a capture without a GPU has it, against PyTorch's own trackers on the same step.

Llama 8B, a sequence of 8,192, under FSDP2 as one of 64 ranks, with and without activation checkpointing, against
``FSDPMemTracker``. ``python -m validation.captured_peaks [tiny|1b|8b]`` prints bytes and seconds of both; the
tracker runs on top of the capture, which goes on underneath, so its seconds have ours in them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from validation.report import DataAbsent, Row, relative

#: Minutes, with PyTorch: ``python -m validation`` runs this only where it is asked for.
TAKES_LONG = True

WORLD, LENGTH = 64, 8192


class Found(NamedTuple):
    """One step: bytes at the peak by both, and processor seconds of the step under each."""

    name: str
    ours: int
    theirs: int
    seconds: float
    their_seconds: float


def rows() -> list[Row]:
    try:
        import torch  # noqa: F401
    except ImportError:
        raise DataAbsent("torch is not installed") from None
    found = [compared("8b", checkpoint=checkpoint) for checkpoint in (False, True)]
    error = max(relative(one.ours, one.theirs) for one in found)
    what = "peak memory of Llama 8B, FSDP2 over 64 ranks"
    return [Row(what, "PyTorch's FSDPMemTracker", len(found), error, 0.0)]


def compared(model: str, *, checkpoint: bool, length: int = LENGTH) -> Found:
    """Run one step of a Llama captured, and one under PyTorch's tracker."""
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker

    from triosim.tracer.fake_device import FakeDevice
    from triosim.tracer.steps import StepObservations

    with FakeDevice("H100-SXM", world=WORLD) as device:
        import torch

        built, optimizer, step = prepared(model, checkpoint=checkpoint, length=length)
        step()
        torch.cuda.reset_peak_memory_stats()
        observed = StepObservations(batch_size=1)
        device.step_begins(0, observed)
        seconds = timed(step)
        device.step_ends(0, observed)
        ours = torch.cuda.max_memory_allocated()
        tracker = FSDPMemTracker(built, optimizer)
        with tracker:
            step()
            tracker.reset_mod_stats()
            theirs = timed(step)
        peak = tracker.get_tracker_snapshot("peak")[torch.device("cuda:0")]["Total"]
    name = f"Llama {model}{' with checkpoints' if checkpoint else ''}"
    return Found(name, ours, peak, seconds, theirs)


def prepared(model: str, *, checkpoint: bool, length: int) -> tuple[Any, Any, Callable[[], None]]:
    """Return a sharded Llama, its optimizer, and a step of it."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    from examples.train import transformer

    dist.init_process_group("nccl")
    mesh = init_device_mesh("cuda", (WORLD,))
    with torch.device("meta"):
        built = transformer.Transformer(transformer.MODELS[model], recompute="full" if checkpoint else None)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for module in (*built.layers.values(), built):
        fully_shard(module, mesh=mesh, mp_policy=policy)
    built.to_empty(device="cuda")
    built.reset_parameters()
    optimizer = torch.optim.AdamW(built.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        tokens = torch.randint(0, built.config.vocabulary, (1, length + 1), device="cuda")
        loss = transformer.next_token_loss(built(tokens[:, :-1]), tokens[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return built, optimizer, step


def timed(step: Callable[[], None]) -> float:
    began = time.process_time()
    step()
    return time.process_time() - began


def main() -> None:
    model = sys.argv[1] if len(sys.argv) > 1 else "8b"
    for checkpoint in (False, True):
        found = compared(model, checkpoint=checkpoint, length=64 if model == "tiny" else LENGTH)
        print(
            f"{found.name}: {found.ours:,} bytes, tracker {found.theirs:,}; "
            f"processor seconds {found.seconds:.1f}, under the tracker {found.their_seconds:.1f}"
        )


if __name__ == "__main__":
    main()
