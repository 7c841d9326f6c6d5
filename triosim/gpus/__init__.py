"""The GPU catalogue, and GPUs from users' files."""

from triosim.gpus.gpu import (
    Gpu,
    catalogue,
    find,
    get,
    known,
    load_user,
    same_chip,
)

__all__ = [
    "Gpu",
    "catalogue",
    "find",
    "get",
    "known",
    "load_user",
    "same_chip",
]
