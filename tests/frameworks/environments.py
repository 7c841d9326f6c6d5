"""The environments of the frameworks: what is installed in each, beside PyTorch for the CPU and triosim itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONSTRAINTS = ROOT / "constraints.txt"
#: What triosim itself needs.
LIGHT = ("numpy", "simpy", "pydantic", "pyyaml", "networkx", "typer", "rich")
PACKAGES = {
    "transformers": ("transformers==5.23.0", "accelerate==1.15.0"),
    "lightning": ("lightning==2.6.6",),
    "timm": ("timm==1.0.31",),
    "torchtitan": ("torchtitan==0.2.2", "triton==3.9.0"),
    "megatron": ("megatron-core==0.16.1",),
    "deepspeed": ("deepspeed==0.19.8",),
}


def python_of(name: str) -> Path:
    """Return the interpreter of an environment, which is made where it is not there yet (a minute, from PyPI)."""
    folder = Path(os.environ.get("TRIOSIM_FRAMEWORKS", ROOT / "build" / "frameworks")) / name
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        install = [str(python), "-m", "pip", "install", "-q", "-c", str(CONSTRAINTS)]
        subprocess.run([*install, "torch", *LIGHT], check=True)
        environment = {**os.environ, "DS_BUILD_OPS": "0"}
        subprocess.run([*install, *PACKAGES[name]], check=True, env=environment)
        subprocess.run([*install, "--no-deps", "-e", str(ROOT)], check=True)
        (folder / "complete").touch()
    return python
