"""Every change to PyTorch that a capture makes: checked to exist, made in one place, and undone when the capture is over.

PyTorch has no interface for "a GPU that is not there", so some of its functions are replaced while a script runs. What is
replaced is looked up first: where a version of PyTorch lacks it, the capture ends before the script has begun, and says so.
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
    """``owner.name`` becomes ``replacement``. What is missing there is an error, or is left so, or is added."""

    owner: Any
    name: str
    replacement: Any
    missing: Literal["error", "leave", "add"] = "error"

    @property
    def place(self) -> str:
        """What is replaced, as one would write it."""
        return f"{getattr(self.owner, '__name__', type(self.owner).__name__)}.{self.name}"


class Patches:
    """Makes patches, and undoes them on leaving, the last one first, also after an error."""

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
        """Make patches, all or none. Raises ``CaptureError`` when what one of them replaces is not there."""
        wanted = [patch for patch in patches if patch.missing != "leave" or hasattr(patch.owner, patch.name)]
        for patch in wanted:
            if patch.missing == "error" and not hasattr(patch.owner, patch.name):
                raise missing_api(patch.place)
        for patch in wanted:
            # What a class or module only inherits, or answers when asked, is not its own: it is removed again afterwards.
            own = vars(patch.owner).get(patch.name, _MISSING)
            setattr(patch.owner, patch.name, patch.replacement)
            self._undo.append(partial(_restore, patch.owner, patch.name, own))

    def add(self, owner: Any, name: str, value: Any) -> None:
        """Add a value to a list of PyTorch's, which stays the same list. Raises ``CaptureError`` when there is none."""
        known = getattr(owner, name, None)
        if not isinstance(known, list):
            raise missing_api(f"{owner.__name__}.{name}")
        if value not in known:
            known.append(value)
            self._undo.append(partial(known.remove, value))

    def on_leaving(self, undo: Callable[[], None]) -> None:
        """Have something undone that is no attribute."""
        self._undo.append(undo)


def _restore(owner: Any, name: str, own: Any) -> None:
    if own is _MISSING:
        delattr(owner, name)
    else:
        setattr(owner, name, own)
