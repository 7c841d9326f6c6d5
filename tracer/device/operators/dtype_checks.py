"""The dtype checks of operators' GPU kernels, which PyTorch's shape rules, run in their place, do not make.

Each rule is what the operator's kernel checks or what it is compiled for (PyTorch, ``aten/src/ATen/native``): factors of one
dtype, targets that are class indices, boolean masks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

Check = Callable[[tuple[Any, ...]], None]

#: By operator, the positions of the arguments that must have one dtype.
_SAME_DTYPE: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(("mm", "bmm", "mv", "dot", "vdot"), (0, 1)),
    **dict.fromkeys(("addmm", "addmv", "baddbmm", "addbmm", "convolution", "_convolution"), (0, 1, 2)),
    **dict.fromkeys(("binary_cross_entropy", "grid_sampler_2d", "grid_sampler_3d"), (0, 1)),
    **dict.fromkeys(
        ("index_put", "_index_put_impl", "masked_scatter", "nll_loss_forward", "nll_loss2d_forward"), (0, 2)
    ),
    **dict.fromkeys(("index_add", "index_copy"), (0, 3)),
}
_FLOATING = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
#: By operator, the position of an argument and the dtypes that it may have.
_ALLOWED: Mapping[str, tuple[int, tuple[torch.dtype, ...]]] = {
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), (1, (torch.int64, torch.uint8))),
    "masked_fill": (1, (torch.bool,)),
    "index_select": (2, (torch.int32, torch.int64)),
    **dict.fromkeys(("_softmax", "_log_softmax", "native_layer_norm", "native_group_norm"), (0, _FLOATING)),
    **dict.fromkeys(("upsample_bilinear2d", "upsample_bicubic2d", "upsample_linear1d"), (0, _FLOATING)),
}


def check_of(name: str) -> Check | None:
    """Return a check of an operator's arguments that raises ``RuntimeError`` as PyTorch would.

    ``name`` is bare: ``addmm`` of ``aten::addmm_``. None where there is nothing to check.
    """
    same_dtype, allowed = _SAME_DTYPE.get(name), _ALLOWED.get(name)
    if same_dtype is None and allowed is None:
        return None

    def check(arguments: tuple[Any, ...]) -> None:
        if same_dtype is not None:
            one_dtype(name, [arguments[position] for position in same_dtype if position < len(arguments)])
        if allowed is not None and allowed[0] < len(arguments):
            found = arguments[allowed[0]].dtype
            if found not in allowed[1]:
                raise RuntimeError(f"{name}: expected {_names(allowed[1])}, but got {_names((found,))}")

    return check


def one_dtype(name: str, tensors: list[Any]) -> None:
    """Raise ``RuntimeError`` where tensors, of which some may be None, have more than one dtype."""
    found = dict.fromkeys(tensor.dtype for tensor in tensors if isinstance(tensor, torch.Tensor))
    if len(found) > 1:
        raise RuntimeError(f"{name}: expected tensors of the same dtype, but got {_names(found, ' and ')}")


def _names(dtypes: Any, between: str = " or ") -> str:
    return between.join(str(dtype).removeprefix("torch.") for dtype in dtypes)
