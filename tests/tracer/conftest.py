"""The fake device that tests of all rooms of the tracer run on; this folder is on the import path, for ``fake_models``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from triosim.tracer.fake_device import FakeDevice


@pytest.fixture
def device() -> Iterator[FakeDevice]:
    from triosim.tracer.fake_device import FakeDevice  # it imports torch, which may not be here

    with FakeDevice("H100-SXM") as entered:
        yield entered
