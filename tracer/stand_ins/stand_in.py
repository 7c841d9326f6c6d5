"""What a stand-in is: the modules of a package, each with the names that scripts import from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class StandIn:
    """A package that is stood in for.

    version: the version whose interface it has.
    distribution: what the package is called where it is installed from.
    instead: what runs in the place of its kernels, for a note.
    modules: the names of each module, by the module's name.
    """

    version: str
    distribution: str
    instead: str
    modules: Mapping[str, Mapping[str, Any]]
