"""Operators whose result is as long as contents say, where something says it without contents: a bound, or a known number.

Where nothing does (``torch.bincount`` without ``minlength``) PyTorch's own error stands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from triosim.tracer.device import assumed_values as fake_values
from triosim.tracer.patches import Patches

if TYPE_CHECKING:
    from triosim.tracer.device.dispatch_mode import DeviceMode

aten = torch.ops.aten


def install(patches: Patches, mode: DeviceMode) -> None:
    """Run these operators until the patches are undone. Those that read a value make the host wait for it."""
    _sequences(patches, mode)
    read = mode.recorder.value_read

    def bincount(numbers: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0) -> Any:
        """As many bins as are asked for at least."""
        if not minlength:
            return NotImplemented
        read(f"none of {minlength} or more", known=False)
        if weights is None:
            return numbers.new_empty((minlength,), dtype=torch.int64)
        dtype = weights.dtype if weights.dtype == torch.float32 else torch.float64
        return numbers.new_empty((minlength,), dtype=dtype)

    def repeat_interleave(repeats: torch.Tensor, *, output_size: int | None = None) -> Any:
        """The places of what is repeated: each as often as is known, else once."""
        if output_size is not None:
            return NotImplemented
        number = int(fake_values.value(repeats))
        read(number, known=fake_values.is_known(repeats))
        return repeats.new_empty((number * repeats.numel(),), dtype=repeats.dtype)

    def unique(data: torch.Tensor, dim: int | None, flags: tuple[bool, bool]) -> Any:
        """All different: the values, their places, and how often each is there."""
        read("all different", known=False)
        length = data.numel() if dim is None else data.shape[dim]
        values = data.new_empty((length,) if dim is None else data.shape)
        shapes = (tuple(data.shape) if dim is None else (length,), (length,))
        others = [
            data.new_empty(s if wanted else (0,), dtype=torch.int64) for wanted, s in zip(flags, shapes, strict=True)
        ]
        return values, *others

    def unique_consecutive(
        data: torch.Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
    ) -> Any:
        return unique(data, dim, (return_inverse, return_counts))

    def unique_dim(
        data: torch.Tensor, dim: int, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
    ) -> Any:
        return unique(data, dim, (return_inverse, return_counts))

    def allclose(*_: Any, **__: Any) -> bool:
        read(True, known=False)
        return True

    mode.special.update(
        {
            aten.bincount.default: bincount,
            aten.repeat_interleave.Tensor: repeat_interleave,
            aten.unique_consecutive.default: unique_consecutive,
            aten.unique_dim.default: unique_dim,
            aten.allclose.default: allclose,
            aten._ctc_loss.default: _ctc_loss,
            aten._ctc_loss.Tensor: _ctc_loss,
            aten._ctc_loss_backward.default: _like_probabilities,
            aten._ctc_loss_backward.Tensor: _like_probabilities,
        }
    )


def _sequences(patches: Patches, mode: DeviceMode) -> None:
    """The loss of sequences (CTC) by PyTorch's own kernel, which has no conditions; lengths are on the host, as numbers."""

    def ctc_loss(probabilities: Any, targets: Any, length: Any, lengths: Any, *options: Any) -> Any:
        if not (hasattr(length, "fake_device") or hasattr(lengths, "fake_device")):
            with torch._C._DisableTorchDispatch():
                length, lengths = length.tolist(), lengths.tolist()
            return aten.ctc_loss.IntList(probabilities, targets, length, lengths, *options)
        plain: Any = aten.ctc_loss.Tensor
        return plain._op_dk(
            torch._C.DispatchKey.CompositeImplicitAutograd, *(probabilities, targets, length, lengths), *options
        )

    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    patches.on_leaving(library._destroy)
    for key in ("AutogradCUDA", "CUDA"):
        library.impl("ctc_loss.Tensor", ctc_loss, key)
    for name in ("_use_cudnn_ctc_loss", "_use_miopen_ctc_loss"):
        packet = getattr(aten, name, None)
        for overload in () if packet is None else packet.overloads():
            mode.run_by[getattr(packet, overload)] = lambda function, args, kwargs: False


def _ctc_loss(probabilities: torch.Tensor, targets: torch.Tensor, _: Any, lengths: Any, *__: Any, **___: Any) -> Any:
    """The loss of each sample, and the sums over all ways to say a target, with blanks around its labels.

    Probabilities are (length, samples, labels), targets (samples, longest) or one after another (LossCTC.cu).
    """
    if targets.dim() == 2:
        longest = targets.shape[1]
    elif hasattr(lengths, "fake_device"):
        return NotImplemented
    else:
        with torch._C._DisableTorchDispatch():
            longest = max((int(one) for one in lengths), default=0)
    length, samples = probabilities.shape[:2]
    return probabilities.new_empty((samples,)), probabilities.new_empty((samples, length, 2 * longest + 1))


def _like_probabilities(_: torch.Tensor, probabilities: torch.Tensor, *__: Any, **___: Any) -> torch.Tensor:
    return torch.empty_like(probabilities)
