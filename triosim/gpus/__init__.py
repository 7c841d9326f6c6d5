"""The GPU catalogue, and GPUs from users' files."""

from triosim.gpus.gpu import Gpu
from triosim.gpus.gpu_file import find
from triosim.gpus.known_gpus import catalogue, get, register, same_chip

__all__ = ["Gpu", "catalogue", "find", "get", "register", "same_chip"]
