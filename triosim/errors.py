"""The exceptions for mistakes of users; each message is one line: where, what, and what would be right.

The command line prints ``str(error)`` and exits with ``error.exit_status``; nothing below it prints or exits.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from itertools import accumulate

#: Characters that move a terminal's cursor, change its state, or turn the direction of what follows.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


class TriosimError(Exception):
    """The base class of errors that the user can correct.

    ``what`` says what is wrong, ``where`` names the file, line, key or option, ``fix`` says what would be right.
    """

    exit_status = 2

    def __init__(self, what: str, where: str | None = None, fix: str | None = None) -> None:
        self.what = what
        self.where = where
        self.fix = fix
        super().__init__(what, where, fix)  # SimPy makes an exception that leaves a process anew, from its arguments

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        if self.fix:
            text = f"{text}; {self.fix}"
        return printable(" ".join(text.split()))  # one line, whatever a file's content put into it


class AsymmetryError(Exception):
    """Raised when ranks or links that were assumed to be identical turn out to differ; the caller then simulates every rank."""


class TraceError(TriosimError):
    """A trace that cannot be read, or that contradicts itself."""


class TopologyError(TriosimError):
    """A topology that cannot be read, built or routed."""


class OptionError(TriosimError):
    """An option, or a combination of options, that is not valid."""


class CaptureError(TriosimError):
    """A step that could not be captured: the script failed, or it has no step; in a world, on a ``rank``.

    ``awaited`` are the ranks from which ranks needed a message before that.
    """

    rank = 0
    awaited: tuple[int, ...] = ()


class ScriptError(CaptureError):
    """A script that raised, or exited with an error, before the step that was to be captured; ``output`` is what it said."""

    output = ""


class CaptureWarning(UserWarning):
    """A difference between the capture and the script on its own, such as compilation that is left out."""


class PluginError(TriosimError):
    """A plug-in that cannot be found, imported or used."""


class OutputError(TriosimError):
    """A result that cannot be written."""


class SimulationError(TriosimError):
    """A simulation that cannot go on, or whose result would mean nothing."""


class DeadlockError(SimulationError):
    """Streams that can never go on: each stuck rank, the task it waits in, and whom it waits for."""


class DoesNotFitError(TriosimError):
    """A step that needs more memory than a GPU has, where the user asked to stop for it."""

    exit_status = 3


def shortened(text: str, longest_value: int = 120, longest: int = 300) -> str:
    """Return a message with its long values, such as a number of a thousand digits, cut in the middle; and the message too."""
    return _cut(" ".join(_cut(word, longest_value) for word in text.split(" ")), longest)


def _cut(text: str, longest: int) -> str:
    if len(text) <= longest:
        return text
    kept = longest - len(" ... ")
    return f"{text[: kept - kept // 3]} ... {text[-(kept // 3) :]}"


def printable(text: str) -> str:
    """Return a text in which control characters, such as an escape sequence in a model's name, are pictures of themselves."""
    return _CONTROL.sub(lambda found: _picture(ord(found[0])), text)


def _picture(code: int) -> str:
    return chr(0x2400 + code) if code < 0x20 else "\u2421" if code == 0x7F else "\ufffd"


def _as_seen(word: str) -> str:
    """Return a word without case, and with the letters O, I and L as the digits that they look like."""
    return word.casefold().translate(_LOOK_ALIKE)


#: Characters of a list of names in a message.
_LONGEST_LIST = 150
_LOOK_ALIKE = str.maketrans("oil", "011")


def nearest(word: str, known: Iterable[str], most: int | None = None) -> str:
    """Return "did you mean 'x'?" for the nearest of ``known``, or the list of them when none is near.

    Of the list there are ``most``, by default as many as a line has room for.
    """
    names = sorted(known)
    by_case = {_as_seen(name): name for name in names}
    close = difflib.get_close_matches(_as_seen(word), by_case, n=1, cutoff=0.6)
    if close:
        return f"did you mean '{by_case[close[0]]}'?"
    if most is None:
        most = sum(length <= _LONGEST_LIST for length in accumulate(len(name) + len(", ") for name in names))
    if len(names) > most:
        return f"known: {', '.join(names[:most])} and {len(names) - most} more"
    return f"known: {', '.join(names)}" if names else "none is known"
