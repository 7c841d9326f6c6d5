"""The versions that measured times depend on, as a table of them keeps: PyTorch's, CUDA's, NCCL's and the driver's."""

from __future__ import annotations

import subprocess
from typing import Any


def versions(torch: Any, device: str) -> str:
    """Return the versions of a device's software in one line."""
    found = [f"torch {torch.__version__}"]
    if device == "cuda":
        found += [f"CUDA {torch.version.cuda}", *_nccl(torch), *_driver()]
    return ", ".join(found)


def _nccl(torch: Any) -> list[str]:
    try:
        return ["NCCL " + ".".join(map(str, torch.cuda.nccl.version()))]
    except (AttributeError, RuntimeError):  # a build without it
        return []


def _driver() -> list[str]:
    command = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.split()
    except (OSError, subprocess.SubprocessError):  # none there, or a container without it
        return []
    return [f"driver {said[0]}"] if said else []
