"""What a rank does between operators: symbolic collectives, transfers between stages, and waits for these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from triosim.extrapolators.core.memory import StoreActivations
from triosim.tasks import CollectiveKind, DeepEP, Layers
from triosim.trace import Operator


class TransferKey(NamedTuple):
    """Identifies a transfer to wait for: its content, and the operator (or tensor between stages) that needs it.

    ``part`` numbers the rounds of a ring; ``again`` marks a transfer that recomputation repeats.
    """

    what: str
    number: int
    part: int = 0
    again: bool = False


@dataclass(frozen=True, slots=True)
class Communicate:
    """A collective of the ranks along ``axis``. Without a ``key`` it blocks; with one, ``Await`` waits for it.

    - ``kind``: "rotate" sends to the next rank along the axis, and receives from the one before.
    - ``parts``: into how many groups of neighbours the axis is divided, each with a collective of its own.
    - ``of_weights``: whether it reduces a parameter's gradient, which no other operator of the backward pass waits for.
    - ``layers``: by default those of its block.
    - ``operator``: the one that needs it, by default the one ahead of it; it is recomputed with that operator.
    - ``tensors`` of that operator: its bytes are divided as these are.
    - ``shares``: unequal shares in bytes, in the order of the ranks; of an all-to-all, those from each to each, by sender.
    - ``transport``: what carries an all-to-all where that is not NCCL.
    """

    kind: CollectiveKind | Literal["rotate"]
    nbytes: float
    axis: str
    key: TransferKey | None = None
    parts: int = 1
    of_weights: bool = False
    layers: Layers | None = None
    operator: int | None = None
    tensors: tuple[int, ...] = ()
    shares: tuple[float, ...] | None = None
    transport: DeepEP | None = None

    def divided(self, before: Mapping[int, Operator], after: Mapping[int, Operator]) -> Communicate:
        """Return the collective with the bytes that it has when operators, by id, are in other shapes."""
        if not self.tensors or self.operator is None:
            return self
        old, new = (
            sum(t.nbytes for t in (*op.inputs, *op.outputs) if t.id in self.tensors)
            for op in (before[self.operator], after[self.operator])
        )
        if new == old:
            return self
        shares = None if self.shares is None else tuple(share * new / old for share in self.shares)
        transport = None if self.transport is None else self.transport.scaled(new / old)
        return replace(self, nbytes=self.nbytes * new / old, shares=shares, transport=transport)

    def awaited(self) -> Await:
        """Return the item that waits for it, where it has a key."""
        assert self.key is not None
        return Await(self.key)


@dataclass(frozen=True, slots=True)
class SendToStage:
    """A tensor that is sent to another stage, which receives it by ``key``; the GPU goes on meanwhile.

    Where that stage runs depends on the schedule and the micro-batch. If it is on the same rank, nothing is sent.
    """

    stage: int
    nbytes: float
    key: TransferKey
    layers: Layers | None = None


@dataclass(frozen=True, slots=True)
class ReceiveFromStage:
    """A tensor that is received from another stage; ``Await`` waits for it."""

    stage: int
    key: TransferKey


@dataclass(frozen=True, slots=True)
class ExchangeWithRank:
    """Bytes that are sent to another pipeline rank, and as many that are received; ``Await`` waits for these."""

    pipeline_rank: int
    nbytes: float
    key: TransferKey
    layers: Layers | None = None


@dataclass(frozen=True, slots=True)
class Await:
    """The computation waits for the transfer of this key."""

    key: TransferKey


#: What a rank does between operators.
Instruction = Communicate | SendToStage | ExchangeWithRank | Await | StoreActivations
