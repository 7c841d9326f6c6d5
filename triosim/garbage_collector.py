"""Pauses Python's garbage collector while many long-lived objects are created."""

from __future__ import annotations

import gc
from contextlib import ContextDecorator


class without_collecting(ContextDecorator):  # noqa: N801  # read as a statement, like ``contextlib.suppress``
    """Pauses garbage collection: going over hundreds of thousands of objects again and again takes as long as the rest.

    It is no generator: the end of one makes an object, and with it begins a collection of all that was just made.
    """

    def __init__(self) -> None:
        self._were_collecting: list[bool] = []  # one for each call, where a function that it decorates calls itself

    def __enter__(self) -> None:
        self._were_collecting.append(gc.isenabled())
        gc.disable()

    def __exit__(self, *_: object) -> None:
        if self._were_collecting.pop():
            gc.enable()
