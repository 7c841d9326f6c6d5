"""The time to simulate captured streams: a Llama-like step, FSDP over 64 ranks; the goal is about 5 s.

python benchmarks/captured_streams.py [RANKS]
"""

from __future__ import annotations

import sys
import time

from triosim.simulation import simulate
from triosim.trace import Communication, Mark, Operator, Phase, Tensor, Trace
from triosim.trace.task_streams import TaskStreams

GOAL = 5.0
LAYERS = 43
LAYER_BYTES = 436e6


class Step:
    """Writes the operators and marks of a fully sharded step, as FSDP2 issues them: three streams and their events."""

    def __init__(self) -> None:
        self.operators: list[Operator] = []
        self.marks: list[Mark] = []
        self.events = 0

    def run(self, name: str, seconds: float, phase: Phase, layer: str, stream: str = "compute", **more: object) -> None:
        """Add an operator."""
        number = len(self.operators)
        tensor = Tensor(number, (8192, 4096), "bfloat16")
        self.operators.append(
            Operator(number, name, phase, layer, (tensor,), (tensor,), seconds, stream=stream, **more)  # type: ignore[arg-type]
        )

    def order(self, first: str, then: str) -> None:
        """Let one stream wait for another."""
        self.events += 1
        self.marks.append(Mark(len(self.operators), "record", first, self.events))
        self.marks.append(Mark(len(self.operators), "wait", then, self.events))

    def gather(self, phase: Phase, layer: str) -> None:
        """Gather the parameters of a layer on a stream of their own."""
        self.run("fsdp::all_gather_copy_in", 2e-5, phase, layer, "copy in")
        self.order("copy in", "all gather")
        asked = Communication("all_gather", "fsdp", LAYER_BYTES)
        self.run("c10d::_allgather_base_", 0.0, phase, layer, "all gather", communication=asked)
        self.order("all gather", "compute")
        self.run("fsdp::split_with_sizes_copy", 1e-4, phase, layer)
        self.order("compute", "copy in")

    def scatter(self, layer: str) -> None:
        """Reduce and scatter the gradients of a layer on a stream of their own."""
        self.run("fsdp::chunk_cat", 1e-4, "backward", layer)
        self.order("compute", "reduce scatter")
        asked = Communication("reduce_scatter", "fsdp", LAYER_BYTES)
        self.run("c10d::_reduce_scatter_base_", 0.0, "backward", layer, "reduce scatter", communication=asked)


def streams(ranks: int, layers: int = LAYERS) -> TaskStreams:
    """Return a step of about 10,000 operators and 260 collectives, the same for all ranks."""
    step = Step()
    for phase, each, seconds in (("forward", 50, 1e-4), ("backward", 120, 1e-4)):
        for layer in range(layers):
            step.gather(phase, f"layers.{layer}")  # type: ignore[arg-type]
            for number in range(each):
                step.run("aten::mm", seconds if number % 2 else 0.0, phase, f"layers.{layer}")  # type: ignore[arg-type]
            if phase == "backward":
                for _ in range(4):
                    step.scatter(f"layers.{layer}")
    step.order("reduce scatter", "compute")
    for number in range(2000):
        step.run("aten::_fused_adamw_", 1e-6, "optimizer", f"layers.{number % layers}")
    trace = Trace(tuple(step.operators), 1, "llama-like", "H100", "made up", marks=tuple(step.marks))
    return TaskStreams({0: trace}, (0,) * ranks, {"fsdp": (tuple(range(ranks)),)}, global_batch_size=ranks)


def main() -> None:
    """Measure once, and print it."""
    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else 64
    made = streams(ranks)
    trace = made.traces[0]
    collectives = sum(operator.communication is not None for operator in trace.operators)
    begin = time.perf_counter()
    result = simulate(made, topology="dgx-h100")
    seconds = time.perf_counter() - begin
    print(
        f"{len(trace.operators):,} operators and {collectives} collectives on each of {ranks} ranks: "
        f"a step of {result.step_time_s:.4f} s simulated in {seconds:.2f} s (goal for 64: {GOAL:g} s)"
    )


if __name__ == "__main__":
    main()
