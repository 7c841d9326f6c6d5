"""What PyTorch's ``DTensor`` does otherwise than Megatron-LM: its loss, and its collectives along the sequence.

``torch/distributed/tensor/parallel/loss.py`` (``loss_parallel``) writes the loss on logits that are sharded by vocabulary out
in several steps. Its forward pass holds the logits less their maxima while it makes the result of these; its backward pass
adds the exponentials of the result to the labels' gradients, and multiplies the sum: each is a tensor of the logits' size.
Megatron-LM's computes in place.

With sequence parallelism an input is gathered once and kept for the gradients of the weights. NCCL joins and divides tensors
along their first dimension alone; the sequence is the second. So ``_functional_collectives.py`` copies what was gathered
into the order of the sequence (``_maybe_view_chunk_cat``), unless there is one sample, and puts what is to be scattered into
the order of the ranks first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from triosim.extrapolators.tensor.added_operators import AddedOperators
from triosim.operators.features import base_name
from triosim.sharding.placements import Placements
from triosim.trace import Operator, Tensor

_STEPS = ("log_softmax", "log_softmax_backward_data")


class SequenceCopies:
    """The copies that ``DTensor`` makes of what is gathered and scattered along the sequence.

    A copy is written over the tensor that it is of, so that whoever reads the tensor reads the copy; the other of the two
    tensors that exist meanwhile is a second result, which nobody reads. Products that overlap with their collectives
    (``in_rings``) copy a rank's own share alone, which is not counted.
    """

    def __init__(self, added: AddedOperators, samples: int, *, in_rings: bool) -> None:
        self._added = added
        self._samples = samples
        self._in_rings = in_rings
        self._others: dict[tuple[tuple[int, ...], str], Tensor] = {}

    def after_gather(self, tensor: Tensor, reader: Operator) -> list[Operator]:
        """Return the copy of a gathered tensor ahead of the operator that reads it; none of a single sample."""
        return self.before_scatter(tensor, reader) if self._samples > 1 else []

    def before_scatter(self, tensor: Tensor, near: Operator) -> list[Operator]:
        """Return the copy of a tensor that is going to be scattered, in the phase and layer of the operator ``near``."""
        if self._in_rings:
            return []
        (copy,) = self._added.priced([self._added.operator("clone", near, (tensor,), (tensor,))])
        return [replace(copy, outputs=(tensor, self._other(tensor)))]

    def _other(self, tensor: Tensor) -> Tensor:
        """Return the second tensor: the same one for all of a shape, as equal layers have equal operators."""
        what = tensor.shape, tensor.dtype
        if what not in self._others:
            number = self._added.tensor_id()
            self._others[what] = Tensor(number, *what, "activation", number)
        return self._others[what]


def with_step_of_loss(operator: Operator, placements: Placements, new_tensor: Callable[[], int]) -> Operator:
    """Return an operator of a loss with one tensor more, which it makes and drops; other operators are as before.

    ``new_tensor`` returns the id of a tensor that is not in use.
    """
    result = operator.outputs[-1] if operator.outputs else None
    if base_name(operator.name) not in _STEPS or result is None or result.id not in placements:
        return operator
    number = new_tensor()
    step = replace(result, id=number, storage=number, category="activation")
    return replace(operator, outputs=(*operator.outputs, step))
