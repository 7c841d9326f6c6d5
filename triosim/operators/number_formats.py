"""Number formats of matrix products: the dtype of the factors, or fp8 with a scale for each block of 128 numbers.

Products of narrow factors are ``_scaled_mm``: two factors, and the scales of each. Their result is in half precision. In
nvfp4, a byte holds two numbers, so that a tensor's last dimension is half of theirs, and 16 numbers share a scale in fp8.
"""

from __future__ import annotations

from collections.abc import Sequence

from triosim.trace import DTYPE_BYTES, Tensor, dtype_name

FP8, FP8_BLOCK, FP4 = "float8_e4m3fn", "float8_e4m3fn_block", "float4_e2m1fn_x2"
#: The dtype of factors in nvfp4 whose dimensions count numbers.
FP4_NUMBERS = "float4_e2m1fn"
#: The formats of scaled products.
SCALED = (FP8, FP8_BLOCK, FP4)
#: All formats that a table of products may be in.
FORMATS = (*(dtype for dtype in DTYPE_BYTES if dtype != FP4_NUMBERS), FP8_BLOCK)
#: How many numbers of a factor share a scale.
SHARING = {FP8_BLOCK: 128, FP4: 16}
_SCALE_BYTES = {FP8_BLOCK: 4, FP4: 1}


def format_name(text: str) -> str:
    """Return the name of a format that people write shorter (``bf16``, ``fp8_block``, ``nvfp4``); any other text as it is."""
    return FP8_BLOCK if text.strip().lower() == "fp8_block" else dtype_name(text)


def dtype_of(form: str) -> str:
    """Return the dtype of a factor in a format."""
    return FP8 if form == FP8_BLOCK else form


def numbers_in_an_element(dtype: str) -> int:
    """Return how many numbers an element of a tensor holds."""
    return 2 if dtype == FP4 else 1


def bytes_of_factor(form: str) -> float:
    """Return the bytes of a number of a factor, with its part of the scales."""
    own = DTYPE_BYTES[dtype_of(form)] / numbers_in_an_element(form)
    return own + _SCALE_BYTES[form] / SHARING[form] if form in SHARING else own


def bytes_of_result(form: str) -> float:
    """Return the bytes of a number of a product's result."""
    return max(DTYPE_BYTES[dtype_of(form)], 2)


def of_scaled(inputs: Sequence[Tensor]) -> str:
    """Return the format of a scaled product: its factors are in blocks where both have tables of scales, and not one for each
    row and column.
    """
    dtype, scales = inputs[0].dtype, [tensor for tensor in inputs[2:4] if len(tensor.shape) > 1]
    in_blocks = len(scales) == 2 and scales[1].shape != (1, inputs[1].shape[-1])
    if dtype in (FP4, FP4_NUMBERS):
        return FP4
    return FP8_BLOCK if in_blocks else dtype
