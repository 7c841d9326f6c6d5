"""Describes an adapter: what it patches in a framework, and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from triosim.tracer.patches import Patch

#: Is told of each process group over which a framework reduces gradients: its ranks have samples of their own.
ReducesGradients = Callable[[Any], None]


@dataclass(frozen=True, slots=True)
class Adapter:
    """Patches that are made after ``module`` was imported; ``version`` is the framework's that they were written for."""

    framework: str
    version: str
    reason: str
    module: str
    patches: Callable[[ModuleType, ReducesGradients], list[Patch]]
