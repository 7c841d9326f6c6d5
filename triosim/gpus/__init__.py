"""The GPU catalogue, and GPUs from users' files."""

from triosim.gpus.gpu import Gpu
from triosim.gpus.known_gpus import catalogue, get, register, same_chip
from triosim.gpus.lookup import find, load_user

__all__ = [
    "Gpu",
    "catalogue",
    "find",
    "get",
    "load_user",
    "register",
    "same_chip",
]
