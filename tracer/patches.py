"""Replaces functions of PyTorch during a capture, and restores them when the capture is over.

PyTorch has no interface for a fake GPU, so some of its functions are replaced while a script runs. What is to be replaced is
looked up first: where a version of PyTorch lacks it, the capture ends with an error before the script has begun.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Literal

from triosim.tracer.pytorch_version import missing_api

_MISSING = object()


@dataclass(frozen=True, slots=True)
class Patch:
    """``owner.name`` becomes ``replacement``. ``missing`` says whether an unknown name is an error, left out, or added."""

    owner: Any
    name: str
    replacement: Any
    missing: Literal["error", "leave", "add"] = "error"

    @property
    def place(self) -> str:
        """The name of what is replaced, with its owner."""
        return f"{getattr(self.owner, '__name__', type(self.owner).__name__)}.{self.name}"


class Patches:
    """Makes patches, and undoes them on leaving, in reverse order, also after an error."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def __enter__(self) -> Patches:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        while self._undo:
            self._undo.pop()()

    def make(self, patches: Iterable[Patch]) -> None:
        """Make patches, all or none. Raises ``CaptureError`` when what one of them replaces does not exist."""
        wanted = [patch for patch in patches if patch.missing != "leave" or hasattr(patch.owner, patch.name)]
        for patch in wanted:
            if patch.missing == "error" and not hasattr(patch.owner, patch.name):
                raise missing_api(patch.place)
        for patch in wanted:
            # A name that is inherited or computed is not in the owner's dictionary: the replacement is removed afterwards.
            own = vars(patch.owner).get(patch.name, _MISSING)
            setattr(patch.owner, patch.name, patch.replacement)
            self._undo.append(partial(_restore, patch.owner, patch.name, own))

    def add(self, owner: Any, name: str, value: Any) -> None:
        """Add a value to a list of PyTorch's, in place. Raises ``CaptureError`` when the list does not exist."""
        known = getattr(owner, name, None)
        if not isinstance(known, list):
            raise missing_api(f"{owner.__name__}.{name}")
        if value not in known:
            known.append(value)
            self._undo.append(partial(known.remove, value))

    def on_leaving(self, undo: Callable[[], None]) -> None:
        """Call a function on leaving, to undo what is no attribute."""
        self._undo.append(undo)


def _restore(owner: Any, name: str, own: Any) -> None:
    if own is _MISSING:
        delattr(owner, name)
    else:
        setattr(owner, name, own)
