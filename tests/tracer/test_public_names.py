"""The tracer's public names are loaded when they are asked for."""

from __future__ import annotations

import sys

import pytest

from triosim import tracer
from triosim.errors import OptionError


@pytest.mark.parametrize("name", tracer.__all__)
def test_without_pytorch_one_is_told_what_to_install(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(OptionError, match=r"pip install 'triosim\[torch\]'"):
        getattr(tracer, name)
