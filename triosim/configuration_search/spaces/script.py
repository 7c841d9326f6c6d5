"""A training script as the subject of a search: each point is the script with other arguments, captured without a GPU."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from triosim.capture.many_ranks import capture_ranks
from triosim.configuration_search.point import Point
from triosim.errors import OptionError
from triosim.trace.formats import write
from triosim.tracer.pytorch_version import require_torch
from triosim.tracer.script_runner import check_script

_SCRIPT, _VARIED = "--script", "--vary-argument"


@dataclass(frozen=True, slots=True)
class Script:
    """A script with the arguments that all points have, and the names of those that are axes of the space.

    Captures are kept in ``folder``, which the processes of a search share; without one nothing is captured.
    """

    path: str
    arguments: tuple[str, ...]
    varied: tuple[str, ...] = ()
    folder: str = ""

    @classmethod
    def read(cls, text: str) -> Script:
        """Return the script of ``train.py --layers 4``. Raises ``OptionError`` where there is none, or no PyTorch."""
        try:
            path, *arguments = shlex.split(text)
        except ValueError as error:
            raise OptionError(f"'{text}' is no command: {error}", where=_SCRIPT) from None
        check_script(path)
        require_torch()
        return cls(path, tuple(arguments))

    @classmethod
    def of_plain(cls, plain: dict[str, Any]) -> Script:
        """Return the script that ``plain`` gave, to be shown."""
        return cls(plain["path"], tuple(plain["arguments"]), tuple(plain["varied"]))

    def plain(self) -> dict[str, Any]:
        """Return it as JSON holds it."""
        return {"path": self.path, "arguments": self.arguments, "varied": self.varied}

    def varying(self, names: tuple[str, ...], folder: str = "") -> Script:
        """Return it with arguments that vary, and the folder of its captures."""
        return replace(self, varied=names, folder=folder)

    def arguments_at(self, point: Point) -> tuple[str, ...]:
        """Return the script's arguments at a point."""
        return (*self.arguments, *(f"{name}={value}" for name, value in point.settings if name in self.varied))

    def captured(self, point: Point, gpu: str, world: int) -> str:
        """Return the path of the streams of a point's step, captured if they are not there. Raises ``CaptureError``."""
        arguments = self.arguments_at(point)
        name = hashlib.sha256(json.dumps([arguments, gpu, world]).encode()).hexdigest()[:32]
        path = Path(self.folder, f"{name}.json.gz")
        if not path.exists():
            write(capture_ranks(self.path, arguments, world=world, gpu=gpu, quiet=True).streams, path)
        return str(path)

    def command(self, point: Point, gpu: str, world: int, path: str) -> str:
        """Return the command that captures a point's step into a file."""
        words = ["triosim", "capture", "--fake", "--gpu", gpu, "--world", str(world), "-o", path]
        return shlex.join((*words, self.path, *self.arguments_at(point)))


def varied_arguments(texts: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the arguments of ``--vary-argument "--tp=1,2"`` with their values. Raises ``OptionError``."""
    found: dict[str, tuple[str, ...]] = {}
    for text in texts:
        name, _, said = text.rpartition("=")
        values = tuple(dict.fromkeys(part.strip() for part in said.split(",") if part.strip()))
        if not name or not values:
            raise OptionError(f"'{text}' is not an argument and values", where=_VARIED, fix='write "--tp=1,2,4"')
        if name in found:
            raise OptionError(f"'{name}' is given twice", where=_VARIED, fix="give all its values once")
        found[name] = values
    return found
