"""The tests of frameworks run only where they are asked for: ``pytest -m frameworks``."""

from __future__ import annotations

from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "frameworks" not in (config.option.markexpr or ""):
        ours = [one for one in items if FOLDER in one.path.parents]
        config.hook.pytest_deselected(items=ours)
        items[:] = [one for one in items if one not in ours]
