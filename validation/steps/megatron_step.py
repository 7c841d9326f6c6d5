"""One training step of Megatron's GPT, from its sizes to seconds: described, and simulated on nodes of eight A100s."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import triosim
from triosim.models import GPT
from triosim.networks.calibration.lookup import calibration_of
from triosim.networks.topology import Section, Topology
from triosim.networks.topology.description import Location
from triosim.operators.features import base_name
from triosim.trace import Operator, Trace
from validation.steps.rows import Record

CONSTANTS = ("launch", "softmax", "wait", "ahead")

#: Nodes by their network: vTrain's have four cards, each for two GPUs; Korthikanti's (Selene) have one for each GPU.
_NODES: dict[str, dict[str, Any]] = {
    "dgx-a100": {},
    "four-cards": {"inter_node": {"bandwidth": "200 Gb/s", "latency": "1 us", "gpus_per_nic": 2}},
    "eight-cards": {"inter_node": {"bandwidth": "200 Gb/s", "latency": "1 us"}},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What is trained, and how it is divided; ``interleave`` is the number of stages of a rank."""

    layers: int
    hidden: int
    heads: int
    sequence: int
    global_batch: int
    micro_batch: int
    tp: int
    dp: int
    pp: int
    nodes: str
    vocab: int = 51200
    interleave: int = 1
    recompute: str
    sequence_parallel: bool = False

    @property
    def gpus(self) -> int:
        """How many there are."""
        return self.tp * self.dp * self.pp

    @property
    def micro_batches(self) -> int:
        """How many a replica has."""
        return self.global_batch // (self.dp * self.micro_batch)

    @property
    def work(self) -> int:
        """What the time of a prediction grows with."""
        return self.layers * self.micro_batches * self.gpus

    @property
    def model(self) -> str:
        """The size of the model."""
        return f"{self.layers} layers of {self.hidden}"

    @property
    def label(self) -> str:
        """The columns in short."""
        return (
            f"h={self.hidden} L={self.layers} a={self.heads} s={self.sequence} tp={self.tp} dp={self.dp} pp={self.pp} "
            f"batch={self.global_batch}/{self.micro_batch}"
        )

    @property
    def fused_softmax(self) -> bool:
        """Whether Megatron's fused softmax takes the shape: it works on multiples of four samples' heads."""
        return not (self.heads // self.tp * self.micro_batch) % 4

    def check(self, record: Record, gpus: int) -> None:
        """Refuse a step that cannot be."""
        record.check(gpus == self.gpus, f"{gpus} GPUs", f"tensor, data and pipeline parallelism make {self.gpus}")
        share = self.dp * self.micro_batch
        record.check(not self.global_batch % share, f"global batch {self.global_batch}", f"give a multiple of {share}")
        stages = self.pp * self.interleave
        record.check(not self.layers % stages, f"{self.layers} layers", f"give a multiple of the {stages} stages")
        record.check(not self.hidden % self.heads, f"{self.heads} heads", f"give a divisor of {self.hidden}")
        record.check(
            not self.heads % self.tp, f"{self.heads} heads", f"give a multiple of tensor parallelism {self.tp}"
        )


def step_seconds(step: Step, constants: Mapping[str, float]) -> float:
    """Return the simulated seconds of a step."""
    stages = step.pp * step.interleave
    axes = {"tp": step.tp, "dp": step.dp, "pp": step.pp}
    result = triosim.simulate(
        _trace(step, tuple(sorted(constants.items()))),
        {name: size for name, size in axes.items() if size > 1} or "single",
        topology=None if step.gpus == 1 else _nodes(step, constants["wait"]),
        gpus=step.gpus,
        batch_size=step.micro_batch * step.micro_batches,
        micro_batches=step.micro_batches,
        stages=tuple(f"transformer.layers.{step.layers * k // stages}" for k in range(1, stages)) or None,
        schedule="interleaved" if step.interleave > 1 else "1f1b",
        virtual_stages=step.interleave if step.interleave > 1 else None,
        tp_style="megatron",
        sequence_parallel=step.sequence_parallel,
        recompute=step.recompute,
        host_overhead="trace",
        run_ahead=round(constants["ahead"]),
        fold=True,
        options=_sends(step),
    )
    return result.step_time_s


def _sends(step: Step) -> dict[str, str]:
    """Return that GPUs with the same activations send a part each, as Megatron-LM's do; by sequence all have their own."""
    return {"sends": "parts"} if step.pp > 1 and step.tp > 1 and not step.sequence_parallel else {}


def _nodes(step: Step, wait: float) -> Topology:
    """Return the system, whose collectives take as long as alone and what their ranks wait for each other."""
    system = Topology.from_dict({"preset": "dgx-a100", "gpus": max(8, step.gpus), **_NODES[step.nodes]})
    measured = calibration_of(system)
    assert measured is not None, "the preset is calibrated"
    waiting = Section("calibration", replace(measured, wait=wait), Location("megatron_step"))
    return system.with_sections({"calibration": waiting})


@cache
def _described(layers: int, hidden: int, heads: int, sequence: int, vocab: int, micro_batch: int) -> Trace:
    sizes = GPT(layers=layers, hidden=hidden, heads=heads, vocab=vocab, sequence=sequence)
    return triosim.describe(
        sizes, batch=micro_batch, dtype="fp16", attention="math", optimizer="master-adamw", gpu="A100-SXM-80GB"
    )


def _trace(step: Step, constants: tuple[tuple[str, float], ...]) -> Trace:
    """Return the step's operators, with the times and the host times that the constants give them."""
    trace = _described(step.layers, step.hidden, step.heads, step.sequence, step.vocab, step.micro_batch)
    known = dict(constants)
    return replace(trace, operators=tuple(_timed(one, step, known) for one in trace.operators))


def _timed(operator: Operator, step: Step, constants: Mapping[str, float]) -> Operator:
    if not operator.seconds:
        return operator  # a view
    host = constants["launch"]
    if base_name(operator.name) in ("softmax", "softmax_backward_data") and not step.fused_softmax:
        host += constants["softmax"]
    return operator.with_host_seconds(host)
