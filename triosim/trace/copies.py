"""Copies from memory to memory in a profile: the names of their kernels, and what an operator says of one.

They take a copy engine of the GPU or, within the host, nothing of it, but no compute units, unlike those within the GPU.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

#: A profile's streams that do nothing but such copies: their names begin so.
COPY_STREAM = "copy"
#: The keys of a copy in an operator's attributes: its bytes, and what reports call it.
COPIED_BYTES, COPY_LABEL = "bytes", "label"
#: The directions, as CUDA names them.
TO_HOST, FROM_HOST = "DtoH", "HtoD"
_COPY = re.compile(f"Memcpy ({TO_HOST}|{FROM_HOST}|HtoH)")
_WITHIN_HOST = re.compile(r"Memcpy HtoH \((\w+) -> (\w+)\)")


def is_host_copy(kernels: Sequence[str]) -> bool:
    """Return whether all kernels are copies to, from or within the host."""
    return bool(kernels) and all(_COPY.match(name) for name in kernels)


def ends_of(kernel: str, own: str) -> tuple[str, str]:
    """Return the ends of a copy: the device, and memories that its name has; ``own`` is one that it does not name."""
    if found := _WITHIN_HOST.match(kernel):
        return found[1], found[2]
    return "device" if TO_HOST in kernel else own, "device" if FROM_HOST in kernel else own
