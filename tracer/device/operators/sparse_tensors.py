"""Sparse matrices (COO) on the fake device: their indices and values, copied from the host or put together by the script.

How many elements a dense tensor of the device has beside zeros is not known, so it cannot be made sparse there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from triosim.tracer.device.dispatch_mode import DeviceMode

aten = torch.ops.aten


class SparseMatrix(torch.Tensor):
    """A sparse tensor with dense ``parts``: indices of (dimensions, elements), and values of (elements, ...)."""

    parts: tuple[torch.Tensor, torch.Tensor]
    mode: DeviceMode
    coalesced: bool

    @staticmethod
    def __new__(
        cls, parts: tuple[torch.Tensor, torch.Tensor], size: Any, mode: DeviceMode, *, coalesced: bool = False
    ) -> SparseMatrix:
        """Make a tensor of this size without memory of its own."""
        values = parts[1]
        made: SparseMatrix = torch.Tensor._make_wrapper_subclass(
            cls, size, dtype=values.dtype, device=values.device, layout=torch.sparse_coo
        )
        made.parts, made.mode, made.coalesced = parts, mode, coalesced
        return made

    def __tensor_flatten__(self) -> Any:
        """Say that an operator is run here, and then on the parts."""
        return [], None

    def __repr__(self, *_: Any, **__: Any) -> str:
        return f"tensor(size={tuple(self.shape)}, nnz={self.parts[1].shape[0]}, layout=torch.sparse_coo)"

    def with_values(self, values: torch.Tensor) -> SparseMatrix:
        """Return a matrix with the same indices."""
        return SparseMatrix((self.parts[0], values), self.shape, self.mode, coalesced=self.coalesced)

    @classmethod
    def __torch_dispatch__(cls, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        run = _RUNS.get(function)
        if run is None:
            # as PyTorch says it, and as the capture knows it
            raise NotImplementedError(f"Cannot run {function} on SparseTensorImpl without a device")
        return run(*args, **(kwargs or {}))


def install(mode: DeviceMode) -> None:
    """Let scripts put sparse tensors of the device together."""

    def put_together(function: Any, args: Any, kwargs: Any) -> torch.Tensor:
        _, _, size, indices, values = args[:5]
        if values.device.type != "cuda":
            with torch._C._DisableTorchDispatch():
                return function(*args, **kwargs)  # type: ignore[no-any-return]
        if torch._C._current_graph_task_id() != -1:
            raise NotImplementedError("a gradient is a SparseTensorImpl, which optimizers would need the contents of")
        return SparseMatrix((indices, values), size, mode, coalesced=bool(kwargs.get("is_coalesced")))

    mode.replace({aten._sparse_coo_tensor_with_dims_and_tensors.default: put_together})


def copied(host: torch.Tensor, mode: DeviceMode, device: torch.device, dtype: torch.dtype | None) -> SparseMatrix:
    """Return a copy on the device of a sparse tensor of the host."""
    with torch._C._DisableTorchDispatch():
        indices, values, coalesced = host._indices().contiguous(), host._values().contiguous(), host.is_coalesced()
    kind = values.dtype if dtype is None else dtype
    parts = aten._to_copy.default(indices, device=device), aten._to_copy.default(values, device=device, dtype=kind)
    return SparseMatrix(parts, host.shape, mode, coalesced=coalesced)


def _product(left: Any, right: Any) -> torch.Tensor:
    """Return the dense product of two matrices, of which one is sparse, or of one and a vector."""
    return _recorded(left, right, (left.shape[0], *right.shape[1:]))


def _product_added(added: torch.Tensor, left: Any, right: Any, **_: Any) -> torch.Tensor:
    return _recorded(left, right, tuple(added.shape), added)


def _recorded(left: Any, right: Any, shape: tuple[int, ...], *others: torch.Tensor) -> torch.Tensor:
    sparse, dense = (left, right) if isinstance(left, SparseMatrix) else (right, left)
    if isinstance(dense, SparseMatrix):
        raise NotImplementedError("the product of two SparseTensorImpl has an unknown number of elements")
    mode = sparse.mode
    with mode.muted():
        made = dense.new_empty(shape)
    if not mode.is_muted:
        mode.recorder.operator("aten::_sparse_mm", {}, (*others, *sparse.parts, dense), (made,))
    return made


def _transposed(matrix: SparseMatrix, *_: Any) -> SparseMatrix:
    """Return the transposed matrix, a view: the same elements, in another order."""
    return SparseMatrix(matrix.parts, matrix.shape[::-1], matrix.mode)


def _to(matrix: SparseMatrix, *, dtype: torch.dtype | None = None, device: Any = None, **_: Any) -> SparseMatrix:
    if device is not None and device.type != "cuda":
        raise NotImplementedError("the contents of this SparseTensorImpl are unknown on the host")
    return matrix.with_values(matrix.parts[1].to(dtype))


def _dense(matrix: SparseMatrix, *_: Any, **__: Any) -> torch.Tensor:
    values, mode = matrix.parts[1], matrix.mode
    with mode.muted():
        made = values.new_empty(matrix.shape)
    if not mode.is_muted:
        mode.recorder.operator("aten::_to_dense", {}, matrix.parts, (made,))
    return made


def _on_values(function: Callable[..., torch.Tensor]) -> Callable[..., SparseMatrix]:
    """Return an operator that works on the values alone."""

    def run(matrix: SparseMatrix, *args: Any, **kwargs: Any) -> SparseMatrix:
        if any(isinstance(one, torch.Tensor) and one.dim() for one in args):
            raise NotImplementedError("of SparseTensorImpl and a tensor, the elements are unknown")
        return matrix.with_values(function(matrix.parts[1], *args, **kwargs))

    return run


_RUNS: dict[Any, Callable[..., Any]] = {
    aten.mm.default: _product,
    aten.mv.default: _product,
    aten._sparse_mm.default: _product,
    aten.addmm.default: _product_added,
    aten._sparse_addmm.default: _product_added,
    aten.t.default: _transposed,
    aten.transpose.int: _transposed,
    aten._to_copy.default: _to,
    aten._to_dense.default: _dense,
    aten._nnz.default: lambda matrix: matrix.parts[1].shape[0],
    aten.is_coalesced.default: lambda matrix: matrix.coalesced,
    aten._coalesce.default: lambda matrix: matrix,
    aten._indices.default: lambda matrix: matrix.parts[0],
    aten._values.default: lambda matrix: matrix.parts[1],
    aten.indices.default: lambda matrix: matrix.parts[0],
    aten.values.default: lambda matrix: matrix.parts[1],
    aten.sparse_dim.default: lambda matrix: matrix.parts[0].shape[0],
    aten.dense_dim.default: lambda matrix: matrix.parts[1].dim() - 1,
    aten.detach.default: lambda matrix: matrix.with_values(matrix.parts[1]),
    aten.alias.default: lambda matrix: matrix.with_values(matrix.parts[1]),
    aten.clone.default: _on_values(lambda values, **_: values.clone()),
    **{
        one: _on_values(one)
        for one in (aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor, aten.div.Scalar, aten.neg.default)
    },
}
