"""Lets a script that starts ``nvidia-smi`` see the fake GPUs, with the memory that the script uses on its own."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import torch

from triosim.tracer.patches import Patch, Patches
from triosim.tracer.surroundings import nvidia_smi_program

_NAME = "nvidia-smi"
_IN_A_SHELL = re.compile(r"(?<![\w.-])(?:/usr/bin/)?nvidia-smi(?=$|[\s;|&>)])")


def install(patches: Patches) -> None:
    """Start a stand-in wherever the script starts ``nvidia-smi``, also in a shell, until the patches are undone."""
    patches.make(
        [
            Patch(subprocess.Popen, "__init__", _starting(subprocess.Popen.__init__)),
            Patch(os, "system", _in_a_shell(os.system)),
        ]
    )


def _starting(original: Callable[..., None]) -> Callable[..., None]:
    @wraps(original)
    def __init__(self: Any, args: Any, *others: Any, **kwargs: Any) -> None:  # noqa: N807
        if isinstance(args, str):
            args = _replaced(args) if kwargs.get("shell") else _program() if args == _NAME else args
        elif isinstance(args, (list, tuple)) and args and Path(os.fsdecode(args[0])).name == _NAME:
            args = [*_program(), *args[1:]]
        original(self, args, *others, **kwargs)

    return __init__


def _in_a_shell(original: Callable[[str], int]) -> Callable[[str], int]:
    return wraps(original)(lambda command: original(_replaced(command)))


def _replaced(command: str) -> str:
    """Return a shell's command line with the stand-in."""
    return _IN_A_SHELL.sub(lambda _: shlex.join(_program()), command) if _NAME in command else command


def _program() -> list[str]:
    """Return the command of the stand-in, with the GPUs as they are now."""
    return [
        sys.executable,
        "-I",
        nvidia_smi_program.__file__,
        json.dumps([_gpu(i) for i in range(torch.cuda.device_count())]),
    ]


def _gpu(index: int) -> dict[str, str]:
    """Return what may be asked of a GPU; all of a machine are assumed to be used as the script's own."""
    free, total = torch.cuda.mem_get_info()
    major, minor = torch.cuda.get_device_capability()
    return {
        "index": str(index),
        "count": str(torch.cuda.device_count()),
        "name": torch.cuda.get_device_name(),
        "uuid": f"GPU-simulated-{index}",
        "compute_cap": f"{major}.{minor}",
        "memory.total": str(total // 2**20),
        "memory.used": str((total - free) // 2**20),
        "memory.free": str(free // 2**20),
        "utilization.gpu": "100",
    }
