"""Pauses Python's garbage collector while many long-lived objects are created."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import ContextDecorator, contextmanager


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


@contextmanager
def collecting_what_is_new() -> Iterator[Callable[[], None]]:
    """Pause garbage collection, and give what collects the garbage of what was made since it was last called.

    What is not garbage then is not gone over again until the end: a search keeps what its points share.
    """

    def collect() -> None:
        gc.collect(0)
        gc.freeze()

    was_enabled = gc.isenabled()
    gc.disable()
    gc.freeze()
    try:
        yield collect
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()
