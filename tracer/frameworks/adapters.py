"""Lists all adapters of frameworks, by the module after whose import each is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from triosim.tracer.frameworks import torchtitan, transformers
from triosim.tracer.frameworks.adapter import Adapter

ADAPTERS: tuple[Adapter, ...] = (*torchtitan.ADAPTERS, *transformers.ADAPTERS)


def after_imports() -> Mapping[str, Any]:
    """Return the adapters' patches by the module after whose import they are made."""
    return {one.module: one.patches for one in ADAPTERS}
