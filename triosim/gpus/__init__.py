"""The GPU catalogue, and GPUs from users' files."""

from triosim.gpus.gpu import Gpu
from triosim.gpus.gpu_file import find
from triosim.gpus.known_gpus import catalogue, get, product, register, same_chip

#: The GPU for which times are predicted where a user names none.
DEFAULT_GPU = "H100-SXM"

__all__ = ["DEFAULT_GPU", "Gpu", "catalogue", "find", "get", "product", "register", "same_chip"]
