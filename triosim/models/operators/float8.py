"""Linear layers and experts in narrow number formats, as torchao's Float8Linear trains them, or as Transformer Engine does.

Micikevicius et al. 2022 ("FP8 Formats for Deep Learning"): activations and weights in e4m3, gradients in e5m2. A
tensor's largest magnitude gives its scale; it is scaled, clamped and cast, once for all products that read it. The
scales of torchao's weights are taken to be known from the optimizer's step (``precompute_float8_dynamic_scale_for_fsdp``), and
a weight is cast by one kernel. The tensor cores take the second factor by columns, so that each product of the
backward pass is given copies of the other layout.

Transformer Engine casts by one kernel into both layouts. Its recipes differ in what shares a scale: a tensor, by what earlier
steps had (delayed scaling) or by a pass over it (current scaling); blocks of 128 numbers (DeepSeek-AI 2024); blocks of 32, and
e4m3 for gradients too (MXFP8: Rouhani et al. 2023, "Microscaling Data Formats"); in nvfp4 blocks of 16, below a scale of the
tensor (NVIDIA 2025, "Pretraining Large Language Models with NVFP4"). Where an optimizer keeps copies of the parameters in fp32,
it writes the parameters in the narrow format, so that no product casts a weight (``fp8_param_gather`` of Megatron-Core).
Scales of blocks are left out: they are 1 to 6% of the numbers' bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from triosim.config.stacks import ProductKind
from triosim.models.operators.elementwise import elementwise
from triosim.models.operators.tape import Value
from triosim.models.operators.views import copied, t, transpose, view
from triosim.operators import number_formats

_E4M3, _E5M2 = "float8_e4m3fn", "float8_e5m2"
#: Both sides of a factor have to be multiples of this.
_MULTIPLE = 16


@dataclass(frozen=True, slots=True)
class Recipe:
    """The formats of a step's narrow products.

    gradients: the format of gradients; ``values`` is that of all else.
    measured: a pass over a tensor finds its largest magnitude first.
    both: one kernel casts into both layouts, as Transformer Engine's; else torchao's operators.
    """

    values: str = _E4M3
    gradients: str = _E5M2
    measured: bool = True
    both: bool = True


_RECIPES: Mapping[ProductKind, Recipe] = {
    "fp8": Recipe(both=False),
    "fp8-current": Recipe(),
    "fp8-delayed": Recipe(measured=False),
    "fp8-block": Recipe(gradients=_E4M3, measured=False),
    "mxfp8": Recipe(gradients=_E4M3, measured=False),
    "nvfp4": Recipe(values=number_formats.FP4_NUMBERS, gradients=number_formats.FP4_NUMBERS),
}


@dataclass(frozen=True, slots=True)
class Narrow:
    """A matrix, or one for each expert, in a narrow format with its scale; ``both``: there is a copy by columns, too, for which
    the matrix itself is recorded.
    """

    rows: Value
    scale: Value
    both: bool = False

    def by_columns(self) -> Value:
        """Return the matrix by columns: a copy, where the cast made none."""
        return self.rows if self.both else t(copied(t(self.rows)))


def recipe_of(products: ProductKind) -> Recipe | None:
    """Return the recipe of narrow products; None for others."""
    return _RECIPES.get(products)


def fits(x: Value, weight: Value) -> bool:
    """Whether the tensor cores can multiply rows by a weight in a narrow format: all sides are multiples of 16."""
    return x.tape.products in _RECIPES and not any(
        length % _MULTIPLE for length in (math.prod(x.shape[:-1]), *weight.shape[-2:])
    )


def fits_experts(x: Value, weight: Value) -> bool:
    """Whether experts multiply in the format: Transformer Engine's do, where the optimizer writes their weights in it."""
    recipe = _RECIPES.get(x.tape.products)
    return recipe is not None and recipe.both and _is_kept(weight) and fits(x, weight)


def product(x: Value, weight: Value) -> Value:
    """Rows (..., k) by a transposed weight (n, k), with the three products of forward and backward pass narrow."""
    recipe = _RECIPES[x.tape.products]
    if recipe.both:
        rows = _cast(view(x, (-1, x.shape[-1])), recipe.values, recipe)
    else:
        whole = _cast(x, recipe.values, recipe)
        rows = Narrow(view(whole.rows, (-1, x.shape[-1])), whole.scale)
    table = _cast(weight, recipe.values, recipe)
    out = _scaled((rows.rows, rows.scale), (t(table.rows), table.scale), x.dtype)

    def backward(g: Value) -> tuple[Value | None, Value | None]:
        narrow = _cast(g, recipe.gradients, recipe)
        first = second = None
        if x.node:
            first = view(_scaled((narrow.rows, narrow.scale), (table.by_columns(), table.scale), x.dtype), x.shape)
        if weight.node:
            turned = t(narrow.by_columns()), narrow.scale
            second = _scaled(turned, (rows.by_columns(), rows.scale), weight.dtype)
        return first, second

    return x.tape.differentiate((out,), (x, weight), backward)


def grouped(x: Value, weight: Value, ends: Value, **attributes: Any) -> Value:
    """Rows (rows, k) by the transposed weights (groups, n, k) of their groups, which end where ``ends`` says.

    A pass for the largest magnitudes is not counted: what made the rows finds them.
    """
    tape, recipe = x.tape, replace(_RECIPES[x.tape.products], measured=False)
    rows, table = (_cast(one, recipe.values, recipe) for one in (x, weight))
    groups, wide, k = weight.shape

    def multiply(a: Narrow, first: Value, b: Narrow, second: Value, shape: tuple[int, ...], dtype: str) -> Value:
        given = (first, second, a.scale, b.scale, ends)
        return tape.result("_scaled_grouped_mm", given, shape, dtype, **attributes)

    out = multiply(rows, rows.rows, table, transpose(table.rows, 1, 2), (x.shape[0], wide), x.dtype)

    def backward(g: Value) -> tuple[Value | None, Value]:
        narrow = _cast(g, recipe.gradients, recipe)
        first = multiply(narrow, narrow.rows, table, table.by_columns(), x.shape, x.dtype) if x.node else None
        turned = t(narrow.by_columns())
        return first, multiply(narrow, turned, rows, rows.by_columns(), (groups, wide, k), weight.dtype)

    return tape.differentiate((out,), (x, weight), backward)


def _cast(x: Value, dtype: str, recipe: Recipe) -> Narrow:
    """Return a tensor in a narrow format; one cast for all products that read the tensor."""
    tape = x.tape
    key = x.storage, x.shape
    if key not in tape.narrow:
        tape.narrow[key] = _by_one_kernel(x, dtype, recipe) if recipe.both else _by_torchao(x, dtype)
    found: Narrow = tape.narrow[key]
    return found


def _by_torchao(x: Value, dtype: str) -> Narrow:
    tape = x.tape
    if tape.categories[x.storage] == "parameter":
        return Narrow(elementwise("_to_copy", x, dtype=dtype), tape.new((), "float32", category="buffer"))
    largest = tape.result("amax", (x,), (), "float32", dim=list(range(len(x.shape))))
    scaled = elementwise("clamp", elementwise("mul", x, largest, dtype="float32"))
    return Narrow(elementwise("_to_copy", scaled, dtype=dtype), largest)


def _by_one_kernel(x: Value, dtype: str, recipe: Recipe) -> Narrow:
    """Return a tensor in both layouts; a kept parameter is narrow already, and what is recorded is a view of it."""
    tape, kept = x.tape, _is_kept(x)
    scale = tape.new((), "float32", category="buffer" if kept else None)
    if kept:
        rows = x.alias(x.shape, x.strides, dtype=dtype)
        tape.record("alias", (x,), (rows,))
        return Narrow(rows, scale, both=True)
    given = (x, tape.result("amax", (x,), (), "float32", dim=list(range(len(x.shape))))) if recipe.measured else (x,)
    rows = tape.new(x.shape, dtype)
    tape.record("fused::cast_transpose", given, (rows, scale))
    return Narrow(rows, scale, both=True)


def _is_kept(x: Value) -> bool:
    """Whether a tensor is a parameter that its optimizer writes in the narrow format."""
    return x.tape.keeps_narrow and x.tape.categories[x.storage] == "parameter"


def _scaled(a: tuple[Value, Value], b: tuple[Value, Value], dtype: str) -> Value:
    """Return the product of two factors with their scales."""
    (first, of_first), (second, of_second) = a, b
    tape, shape = first.tape, (first.shape[0], second.shape[1])
    return tape.result("_scaled_mm", (first, second, of_first, of_second), shape, dtype)
