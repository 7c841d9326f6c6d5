"""Describes an adapter: what it patches in a framework, and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

from triosim.tracer.patches import Patch


@dataclass(frozen=True, slots=True)
class Adapter:
    """Patches that are made after ``module`` was imported; ``version`` is the framework's that they were written for."""

    framework: str
    version: str
    reason: str
    module: str
    patches: Callable[[ModuleType], list[Patch]]
