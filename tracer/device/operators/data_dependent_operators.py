"""Operators whose result, or its size, depends on data, which here follows from a bound or an assumed value.

A mask is assumed to be all true, and values to be all different. Where nothing says a size (``torch.bincount`` without
``minlength``) PyTorch's own error is raised.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from triosim.tracer.contents import assumed_contents, assumed_values, storage_contents
from triosim.tracer.contents.known_contents import KnownContents
from triosim.tracer.device.dispatch_mode import DeviceMode
from triosim.tracer.device.operators.operator_info import flat
from triosim.tracer.patches import Patches
from triosim.tracer.recorder.device_tensors import on_device
from triosim.tracer.recorder.recorder import Recorder

aten = torch.ops.aten
_FACTORIZATIONS = (
    *(aten.linalg_cholesky_ex.default, aten.linalg_inv_ex.default, aten.linalg_lu_factor_ex.default),
    *(aten.linalg_ldl_factor_ex.default, aten._linalg_solve_ex.default),
)


def install(patches: Patches, mode: DeviceMode) -> None:
    """Run these operators until the patches are undone. Those that read a value make the host wait for it."""
    _install_ctc_loss(patches, mode)
    rules = _Rules(mode.recorder, mode.contents)
    found = {function: rules.known_or(function, rule) for function, rule in rules.by_operator().items()}
    mode.add_shape_rules({**found, **_factorizations()})
    # Tensors among the numbers of torch.tensor(...) are read below the dispatch modes.
    patches.register_kernels({"_local_scalar_dense": found[aten._local_scalar_dense.default]}, keys=("CUDA",))


class _Rules:
    """Rules for the results of operators. The recorder is told which value each assumes."""

    def __init__(self, recorder: Recorder, contents: KnownContents) -> None:
        self._recorder = recorder
        self._contents = contents

    def by_operator(self) -> Mapping[Any, Callable[..., Any]]:
        """Return the rule of each operator."""
        return {
            aten._local_scalar_dense.default: self._scalar,
            aten.equal.default: self._equal,
            aten.allclose.default: self._allclose,
            aten.nonzero.default: self._nonzero,
            aten.masked_select.default: self._masked_select,
            aten.index.Tensor: self._index,
            aten.bincount.default: self._bincount,
            aten.repeat_interleave.Tensor: self._repeat_interleave,
            aten._unique2.default: lambda data, *_, **__: self._unique(data, None, (True, True)),
            aten.unique_consecutive.default: self._unique_consecutive,
            aten.unique_dim.default: self._unique_dim,
            **dict.fromkeys((aten._ctc_loss.default, aten._ctc_loss.Tensor), _ctc_loss),
            **dict.fromkeys(
                (aten._ctc_loss_backward.default, aten._ctc_loss_backward.Tensor),
                lambda _, probabilities, *__, **___: torch.empty_like(probabilities),
            ),
        }

    def known_or(self, function: Any, rule: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that computes an operator's result where all it reads is known, and else follows a rule."""

        def run(*args: Any, **kwargs: Any) -> Any:
            given = list(flat((*args, *kwargs.values())))
            indices = args[1] if function is aten.index.Tensor else ()
            has_size = function is aten.index.Tensor and not any(_is_mask(one) for one in indices)
            if has_size or not all(storage_contents.is_known(one) for one in given):
                return rule(*args, **kwargs)
            found = self._contents.computed(function, args, kwargs)
            if found is NotImplemented:
                return rule(*args, **kwargs)
            if any(on_device(one) for one in given):
                self._recorder.value_read(known=True)
            most = storage_contents.most_elements(given)
            return tree_map_only(torch.Tensor, lambda real: _fake(real, given[0], most), found)

        return run

    def _assume(self, value: object) -> None:
        self._recorder.value_read(value, known=False)

    def _scalar(self, tensor: torch.Tensor) -> Any:
        """The value of ``item()``: the known one, else 1."""
        if not hasattr(tensor, "fake_device"):
            return NotImplemented
        constant = getattr(tensor, "constant", None)
        if constant is not None:
            with torch._C._DisableTorchDispatch():
                value, known = constant.item(), True
        else:
            value, known = assumed_values.value(tensor), assumed_values.is_known(tensor)
        if not known:
            value = self._recorder.reads.assumed(value, assumed_values.most_in_a_row(tensor))
        if on_device(tensor) or not known:
            self._recorder.value_read(value, known=known)
        return value

    def _equal(self, first: torch.Tensor, second: torch.Tensor) -> bool:
        self._assume(True)
        return first.shape == second.shape

    def _allclose(self, *_: Any, **__: Any) -> bool:
        self._assume(True)
        return True

    def _nonzero(self, tensor: torch.Tensor) -> Any:
        self._assume("all nonzero")
        return tensor.new_empty((tensor.numel(), tensor.dim()), dtype=torch.int64)

    def _masked_select(self, tensor: torch.Tensor, mask: torch.Tensor) -> Any:
        shape = torch.broadcast_shapes(tensor.shape, mask.shape)  # type: ignore[no-untyped-call]
        repeated = math.prod(shape) // max(mask.numel(), 1)
        return tensor.new_empty((repeated * len(self._selected(mask, tensor)[0]),))

    def _index(self, tensor: torch.Tensor, indices: list[Any]) -> Any:
        """A mask is replaced by the indices of the elements that it selects."""
        if not any(_is_mask(one) for one in indices):
            return NotImplemented
        numbers: list[Any] = []
        for one in indices:
            numbers += self._selected(one, tensor) if _is_mask(one) else [one]
        return aten.index.Tensor(tensor, numbers)

    def _selected(self, mask: torch.Tensor, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Return the indices that a mask selects, by dimension: those that are known, else as many as are assumed to be."""
        known = storage_contents.of(mask)
        if known is not None:
            if on_device(mask):
                self._recorder.value_read(known=True)
            with torch._C._DisableTorchDispatch():
                found = torch.atleast_1d(known).nonzero().unbind(1)
            most = storage_contents.most_elements([mask])
            return [_fake(one, tensor, most) for one in found]
        number = self._number_of_true(mask)
        return [tensor.new_empty((number,), dtype=torch.int64) for _ in range(max(mask.dim(), 1))]

    def _number_of_true(self, mask: torch.Tensor) -> int:
        """The number of a mask's elements that are true: all of them where nothing else is known or assumed."""
        assumed = assumed_contents.contents(mask)
        if assumed is not None and assumed_contents.is_assumed(mask):
            with torch._C._DisableTorchDispatch():
                number = int(assumed.count_nonzero())
            self._assume(f"{number} of {mask.numel()} True")
            return number
        is_known = assumed_values.is_known(mask)
        number = mask.numel() if not is_known or assumed_values.value(mask) else 0
        self._recorder.value_read("all True", known=is_known)
        return number

    def _bincount(self, numbers: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0) -> Any:
        """As many bins as are asked for at least."""
        if not minlength:
            return NotImplemented
        self._assume(f"none of {minlength} or more")
        if weights is None:
            return numbers.new_empty((minlength,), dtype=torch.int64)
        dtype = weights.dtype if weights.dtype == torch.float32 else torch.float64
        return numbers.new_empty((minlength,), dtype=dtype)

    def _repeat_interleave(self, repeats: torch.Tensor, *, output_size: int | None = None) -> Any:
        """The index of what is repeated: each as often as is known, else once."""
        if output_size is not None:
            return NotImplemented
        number = int(assumed_values.value(repeats))
        self._recorder.value_read(number, known=assumed_values.is_known(repeats))
        return repeats.new_empty((number * repeats.numel(),), dtype=repeats.dtype)

    def _unique_consecutive(
        self, data: torch.Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
    ) -> Any:
        return self._unique(data, dim, (return_inverse, return_counts))

    def _unique_dim(
        self,
        data: torch.Tensor,
        dim: int,
        sorted: bool = True,
        return_inverse: bool = False,
        return_counts: bool = False,
    ) -> Any:
        return self._unique(data, dim, (return_inverse, return_counts))

    def _unique(self, data: torch.Tensor, dim: int | None, wanted: tuple[bool, bool]) -> Any:
        """The values, or slices along a dimension, and where they are wanted, their inverse indices and counts."""
        self._assume("all different")
        length = data.numel() if dim is None else data.shape[dim]
        values = data.new_empty((length,) if dim is None else data.shape)
        shapes = (tuple(data.shape) if dim is None else (length,), (length,))
        others = [
            data.new_empty(shape if is_wanted else (0,), dtype=torch.int64)
            for is_wanted, shape in zip(wanted, shapes, strict=True)
        ]
        return values, *others


def _factorizations() -> dict[Any, Callable[..., Any]]:
    """Return rules by which factorizations succeed: the last result, the error code of each matrix, is 0."""

    def rule_of(operator: Any) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            result = operator(*args, **kwargs)
            with torch._C._DisableTorchDispatch():
                succeeded = torch.zeros(result[-1].size(), dtype=result[-1].dtype, device="cpu")
            storage_contents.write(result[-1], succeeded)
            return result

        return run

    return {operator: rule_of(operator) for operator in _FACTORIZATIONS}


def _fake(real: torch.Tensor, like: torch.Tensor, most: int) -> torch.Tensor:
    """Return a fake tensor with the contents of a real one, on another's device."""
    made = torch.empty(real.shape, dtype=real.dtype, device=like.device)
    if real.numel() <= most:
        storage_contents.write(made, real, most=most)
    return made


def _is_mask(index: Any) -> bool:
    return index is not None and index.dtype in (torch.bool, torch.uint8)


def _install_ctc_loss(patches: Patches, mode: DeviceMode) -> None:
    """Run CTC loss by PyTorch's own CUDA kernel, which unlike cuDNN's takes any lengths; they are numbers on the host."""

    def ctc_loss(probabilities: Any, targets: Any, length: Any, lengths: Any, *options: Any) -> Any:
        if not (hasattr(length, "fake_device") or hasattr(lengths, "fake_device")):
            with torch._C._DisableTorchDispatch():
                length, lengths = length.tolist(), lengths.tolist()
            return aten.ctc_loss.IntList(probabilities, targets, length, lengths, *options)
        plain: Any = aten.ctc_loss.Tensor
        decomposed = torch._C.DispatchKey.CompositeImplicitAutograd
        return plain._op_dk(decomposed, probabilities, targets, length, lengths, *options)

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
