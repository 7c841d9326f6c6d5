"""Traces of one GPU and captured task streams, and the formats that they are read from."""

from triosim.trace.trace import (
    CATEGORIES,
    DTYPE_BYTES,
    PHASES,
    Category,
    Communication,
    CommunicationKind,
    Mark,
    MarkKind,
    Operator,
    Phase,
    Storage,
    Tensor,
    Trace,
    dtype_name,
)

__all__ = [
    "CATEGORIES", "DTYPE_BYTES", "PHASES", "Category", "Communication", "CommunicationKind", "Mark", "MarkKind", "Operator",
    "Phase", "Storage", "Tensor", "Trace", "dtype_name",
]  # fmt: skip
