"""Random changes of inputs: of values in JSON, of lines and numbers in text, of bytes, and of compressed files."""

from __future__ import annotations

import gzip
import json
import random
import re
import string
from collections.abc import Callable
from copy import deepcopy
from typing import Any

#: What no file should have where something else stood.
VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    2,
    3.5,
    -0.5,
    1e-300,
    1e18,
    1e308,
    10**19,
    10**400,
    float("inf"),
    float("nan"),
    "",
    " ",
    "0",
    "-1",
    "1e999",
    "x",
    "é\x1b[31m\u202e",
    "a" * 3000,
    [],
    [None],
    [[]],
    [1, 2, 3],
    [-1],
    {},
    {"x": 1},
    "gpu0",
    "1 GB/s",
    "file.py:Class",
    "../../etc/passwd",
    "\x00",
)
NUMBERS = (
    "0",
    "-1",
    "1",
    "3",
    "1e18",
    "1e308",
    "1e999",
    "-1e18",
    "9" * 25,
    "9" * 400,
    "nan",
    "inf",
    "0x10",
    "1.5",
    "1_000",
    "",
    "1 TB/s",
)

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")


def of_json(text: str, draw: random.Random) -> str:
    """Return JSON of which a value, a key or the text itself is changed."""
    try:
        content = json.loads(text)
    except ValueError:
        return of_text(text, draw)
    places = list(_places(content))
    if not places or draw.random() < 0.25:
        return of_text(text, draw)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        holder, key = draw.choice(places)
        _change(holder, key, draw)
        places = list(_places(content)) or places
    text = json.dumps(content)
    return re.sub(r'"twice": \[(.*?)\]', r"\1", text) if draw.random() < 0.1 else text


def _places(value: Any) -> Any:
    """Yield each place of a value: its holder and its key or index."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in list(entries):
        yield value, key
        yield from _places(one)


def _change(holder: Any, key: Any, draw: random.Random) -> None:
    kind = draw.choice(("value", "value", "value", "scale", "delete", "rename", "copy", "swap"))
    try:
        if kind == "delete":
            del holder[key]
        elif kind == "rename" and isinstance(holder, dict):
            holder[draw.choice((key + "x", "", "x" * 500, key.upper()))] = holder.pop(key)
        elif kind == "scale" and isinstance(holder[key], (int, float)) and not isinstance(holder[key], bool):
            holder[key] *= draw.choice((-1, 0, 2, 7, 1000, 10**9, 1e12))
        elif kind == "copy" and isinstance(holder, list):
            holder.extend(deepcopy(holder[key]) for _ in range(draw.choice((1, 2, 50))))
        elif kind == "swap" and isinstance(holder, list):
            holder.reverse()
        else:
            holder[key] = deepcopy(draw.choice(VALUES))
    except (KeyError, IndexError, OverflowError):
        pass  # an earlier change took the place away


def of_text(text: str, draw: random.Random) -> str:
    """Return a text of which a line, a number or some characters are changed."""
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        text = draw.choice(_TEXT)(text, draw)
    return text


def _number(text: str, draw: random.Random) -> str:
    found = list(_NUMBER.finditer(text))
    if not found:
        return text + draw.choice(NUMBERS)
    one = draw.choice(found)
    return text[: one.start()] + draw.choice(NUMBERS) + text[one.end() :]


def _word(text: str, draw: random.Random) -> str:
    found = list(re.finditer(r"[A-Za-z_]{2,}", text))
    if not found:
        return text
    one = draw.choice(found)
    other = draw.choice((one[0][:-1], one[0].upper(), "", "null", "true", "x" * 300, draw.choice(found)[0], "é"))
    return text[: one.start()] + other + text[one.end() :]


def _line(text: str, draw: random.Random) -> str:
    lines = text.splitlines(keepends=True) or [""]
    at = draw.randrange(len(lines))
    kind = draw.choice(("delete", "twice", "swap", "many"))
    if kind == "delete":
        del lines[at]
    elif kind == "twice":
        lines.insert(at, lines[at])
    elif kind == "many":
        lines[at:at] = [lines[at]] * 200
    else:
        other = draw.randrange(len(lines))
        lines[at], lines[other] = lines[other], lines[at]
    return "".join(lines)


def _cut(text: str, draw: random.Random) -> str:
    return text[: draw.randrange(len(text) + 1)]


def _characters(text: str, draw: random.Random) -> str:
    at = draw.randrange(len(text) + 1)
    added = "".join(draw.choices(string.printable + "éß\x00\x1b\u2028", k=draw.choice((1, 1, 3, 20))))
    return text[:at] + added + text[at + draw.choice((0, 0, 1, 5)) :]


def _ends(text: str, draw: random.Random) -> str:
    return draw.choice(("\ufeff" + text, text.replace("\n", "\r\n"), text + "\n" * 50, "", "[" * 5000, text + text))


_TEXT: tuple[Callable[[str, random.Random], str], ...] = (
    _number,
    _number,
    _number,
    _word,
    _word,
    _line,
    _line,
    _cut,
    _characters,
    _ends,
)


def of_bytes(data: bytes, draw: random.Random) -> bytes:
    """Return bytes of which some are changed, cut off or added."""
    changed = bytearray(data)
    kind = draw.choice(("flip", "flip", "flip", "cut", "add", "zero"))
    if kind == "cut":
        return bytes(changed[: draw.randrange(len(changed) + 1)])
    for _ in range(draw.choice((1, 2, 8, 64))):
        at = draw.randrange(len(changed) or 1)
        if kind == "add":
            changed[at:at] = draw.randbytes(draw.choice((1, 4, 100)))
        elif changed:
            changed[at] = 0 if kind == "zero" else draw.randrange(256)
    return bytes(changed)


def compressed(data: bytes, draw: random.Random) -> bytes:
    """Return a gzip file that holds the data, or is damaged, or expands to very much."""
    kind = draw.choice(("whole", "whole", "whole", "bytes", "many"))
    if kind == "many":
        return gzip.compress(data + b" " * 100_000_000, compresslevel=1)
    packed = gzip.compress(data)
    return of_bytes(packed, draw) if kind == "bytes" else packed
