"""Operators whose result's size depends on data, which here follows from a bound or an assumed value.

Where nothing does (``torch.bincount`` without ``minlength``) PyTorch's own error is raised.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from triosim.tracer.device import assumed_values
from triosim.tracer.patches import Patches

if TYPE_CHECKING:
    from triosim.tracer.device.dispatch_mode import DeviceMode

aten = torch.ops.aten


def install(patches: Patches, mode: DeviceMode) -> None:
    """Run these operators until the patches are undone. Those that read a value make the host wait for it."""
    _install_ctc_loss(patches, mode)
    sizes = _Sizes(mode.recorder.value_read)
    mode.add_shape_rules(
        {
            aten.bincount.default: sizes.bincount,
            aten.repeat_interleave.Tensor: sizes.repeat_interleave,
            aten.unique_consecutive.default: sizes.unique_consecutive,
            aten.unique_dim.default: sizes.unique_dim,
            aten.allclose.default: sizes.allclose,
            aten._ctc_loss.default: _ctc_loss,
            aten._ctc_loss.Tensor: _ctc_loss,
            aten._ctc_loss_backward.default: _like_probabilities,
            aten._ctc_loss_backward.Tensor: _like_probabilities,
        }
    )


class _Sizes:
    """Operators whose result's size follows from values; ``read`` is told which value is assumed."""

    def __init__(self, read: Callable[..., None]) -> None:
        self._read = read

    def bincount(self, numbers: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0) -> Any:
        """As many bins as are asked for at least."""
        if not minlength:
            return NotImplemented
        self._read(f"none of {minlength} or more", known=False)
        if weights is None:
            return numbers.new_empty((minlength,), dtype=torch.int64)
        dtype = weights.dtype if weights.dtype == torch.float32 else torch.float64
        return numbers.new_empty((minlength,), dtype=dtype)

    def repeat_interleave(self, repeats: torch.Tensor, *, output_size: int | None = None) -> Any:
        """The index of what is repeated: each as often as is known, else once."""
        if output_size is not None:
            return NotImplemented
        number = int(assumed_values.value(repeats))
        self._read(number, known=assumed_values.is_known(repeats))
        return repeats.new_empty((number * repeats.numel(),), dtype=repeats.dtype)

    def unique_consecutive(
        self, data: torch.Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
    ) -> Any:
        """All values, as if no two were equal."""
        return self._unique(data, dim, (return_inverse, return_counts))

    def unique_dim(
        self,
        data: torch.Tensor,
        dim: int,
        sorted: bool = True,
        return_inverse: bool = False,
        return_counts: bool = False,
    ) -> Any:
        """All slices along a dimension, as if no two were equal."""
        return self._unique(data, dim, (return_inverse, return_counts))

    def _unique(self, data: torch.Tensor, dim: int | None, wanted: tuple[bool, bool]) -> Any:
        """Return the values, and where they are wanted, their inverse indices and counts."""
        self._read("all different", known=False)
        length = data.numel() if dim is None else data.shape[dim]
        values = data.new_empty((length,) if dim is None else data.shape)
        shapes = (tuple(data.shape) if dim is None else (length,), (length,))
        others = [
            data.new_empty(shape if is_wanted else (0,), dtype=torch.int64)
            for is_wanted, shape in zip(wanted, shapes, strict=True)
        ]
        return values, *others

    def allclose(self, *_: Any, **__: Any) -> bool:
        """Always true."""
        self._read(True, known=False)
        return True


def _install_ctc_loss(patches: Patches, mode: DeviceMode) -> None:
    """Run CTC loss by PyTorch's own CUDA kernel, which unlike cuDNN's takes any lengths; they are numbers on the host."""

    def ctc_loss(probabilities: Any, targets: Any, length: Any, lengths: Any, *options: Any) -> Any:
        if not (hasattr(length, "fake_device") or hasattr(lengths, "fake_device")):
            with torch._C._DisableTorchDispatch():
                length, lengths = length.tolist(), lengths.tolist()
            return aten.ctc_loss.IntList(probabilities, targets, length, lengths, *options)
        plain: Any = aten.ctc_loss.Tensor
        return plain._op_dk(
            torch._C.DispatchKey.CompositeImplicitAutograd, *(probabilities, targets, length, lengths), *options
        )

    patches.register_kernels({"ctc_loss.Tensor": ctc_loss})
    for name in ("_use_cudnn_ctc_loss", "_use_miopen_ctc_loss"):
        packet = getattr(aten, name, None)
        for overload in () if packet is None else packet.overloads():
            mode.replace({getattr(packet, overload): lambda function, args, kwargs: False})


def _ctc_loss(probabilities: torch.Tensor, targets: torch.Tensor, _: Any, lengths: Any, *__: Any, **___: Any) -> Any:
    """Return the loss of each sample, and the log-probabilities of all alignments to a target with blanks around its labels.

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
