"""What the name of a table's file says of its rows: GPU and number format.

``gemm_fp8_block_h100.csv.gz``, ``attention_causal_bf16_rtx_pro_6000_server.csv.gz``: the most words that name one count.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from triosim import gpus
from triosim.operators.number_formats import FORMATS, format_name


def gpu_of(path: str) -> str | None:
    """Return the name of the catalogue's GPU that a file's name holds, or None."""
    shipped = gpus.catalogue()
    return _longest(path, lambda words: one.name if (one := gpus.get(" ".join(words))) in shipped and one else None)


def format_of(path: str) -> str | None:
    """Return the number format that a file's name holds, or None."""
    return _longest(path, lambda words: found if (found := format_name("_".join(words))) in FORMATS else None)


def _longest(path: str, meaning: Callable[[list[str]], str | None]) -> str | None:
    words = re.split(r"[^a-z0-9+]+", Path(path).name.lower().partition(".")[0])
    for count in range(len(words), 0, -1):
        for start in range(len(words) - count + 1):
            found = meaning(words[start : start + count])
            if found is not None:
                return found
    return None
