"""Reads files: compressed or not, by their first bytes, and JSON that may be damaged.

Nothing is read beyond the limits: a compressed file that would fill the memory ends when it has expanded too far.
"""

from __future__ import annotations

import gzip
import json
import math
import re
import zlib
from io import BytesIO
from pathlib import Path
from typing import Any

from triosim.errors import TraceError, TriosimError
from triosim.input_files.limits import EXPANDED_BYTES, EXPANSION, FILE_BYTES
from triosim.input_files.pipes import seekable

GZIP_MAGIC = b"\x1f\x8b"

#: No quantity has more digits. Of longer whole numbers Python refuses some, and others become no float.
MOST_DIGITS = 25
_LARGE_EXPONENT = re.compile(r"\d[eE]\+?\d{3}")
_LONG_NUMBER = re.compile(rf"\d{{{MOST_DIGITS},}}")
_PIECE = 1 << 20


def head(path: Path, size: int = 65536) -> bytes:
    """Return the first bytes of a file or a pipe, uncompressed; fewer where it is damaged."""
    with open(seekable(path), "rb") as file:
        start = file.read(size)
    if not start.startswith(GZIP_MAGIC):
        return start
    try:
        return zlib.decompressobj(wbits=31).decompress(start, size)
    except zlib.error:
        return b""


def read_bytes(path: Path, error: type[TriosimError] = TraceError) -> bytes:
    """Return a file's content, uncompressed. Raises ``error`` when it cannot be read, is damaged, or is beyond the limits."""
    file = Path(seekable(path))
    try:
        FILE_BYTES.check(file.stat().st_size, str(path), error)
        data = file.read_bytes()
    except (OSError, ValueError) as failed:  # the latter of a path with a null character
        raise error(f"cannot be read: {getattr(failed, 'strerror', None) or failed}", where=str(path)) from failed
    return _decompressed(data, str(path), error) if data.startswith(GZIP_MAGIC) else data


def _decompressed(data: bytes, where: str, error: type[TriosimError]) -> bytes:
    found: list[bytes] = []
    size = 0
    try:
        with BytesIO(data) as source, gzip.GzipFile(fileobj=source) as file:
            while piece := file.read(_PIECE):
                found.append(piece)
                size += len(piece)
                check_expansion(size, source.tell(), where, error)
    except (OSError, EOFError, zlib.error) as failed:
        raise error(f"is a damaged gzip file ({failed})", where=where, fix="it may be truncated") from None
    return b"".join(found)


def check_expansion(size: int, packed: int, where: str, error: type[TriosimError] = TriosimError) -> None:
    """Raise ``error`` where ``packed`` bytes of a compressed file become more than the limits allow."""
    (EXPANDED_BYTES if size > EXPANSION * packed else FILE_BYTES).check(size, where, error)


def read_text(path: Path, error: type[TriosimError] = TraceError) -> str:
    """Return a file's text, uncompressed. Raises ``error`` where ``read_bytes`` does, and for what is no UTF-8."""
    try:
        return read_bytes(path, error).decode("utf-8-sig")
    except UnicodeDecodeError as failed:
        raise error(f"is not text: byte {failed.start} is not UTF-8", where=str(path)) from None


def read_json(
    path: Path, error: type[TriosimError] = TraceError, *, unique_keys: bool = True, finite: bool = True
) -> Any:
    """Return what a JSON file holds. Raises ``error`` that names line and column where it breaks off.

    With ``unique_keys`` a key that is written twice in one object is refused, of which Python's reader takes the last; with
    ``finite`` what is no finite number, unless whoever reads the values says so with their keys.
    """
    return parse_json(read_text(path, error), str(path), error, unique_keys=unique_keys, finite=finite)


def read_object(
    path: Path, error: type[TriosimError] = TraceError, *, unique_keys: bool = True, finite: bool = True
) -> dict[str, Any]:
    """Return the object in a JSON file. Raises ``error`` for anything else."""
    found = read_json(path, error, unique_keys=unique_keys, finite=finite)
    if not isinstance(found, dict):
        raise error("is not a JSON object", where=str(path), fix="begin with {")
    return found


def parse_json(
    text: str, where: str, error: type[TriosimError] = TraceError, *, unique_keys: bool = True, finite: bool = True
) -> Any:
    """Return the value of a JSON text, ``where`` it is from. Raises ``error`` for what is none."""
    try:
        return json.loads(
            text,
            object_pairs_hook=_unique if unique_keys else None,
            # Where such numbers may be: a call for each takes its time.
            parse_int=_whole if _LONG_NUMBER.search(text) else None,
            parse_float=_finite if finite and _LARGE_EXPONENT.search(text) else None,
            parse_constant=_no_constant if finite else None,
        )
    except json.JSONDecodeError as failed:
        if not text.strip():
            raise error("is empty", where=where) from None
        truncated = failed.pos >= len(text.rstrip()) or failed.msg.startswith("Unterminated")
        raise error(
            f"is not JSON: {failed.msg}",
            where=f"{where}: line {failed.lineno} column {failed.colno}",
            fix="the file seems to be truncated" if truncated else None,
        ) from None
    except RecursionError:
        raise error("is nested too deeply", where=where) from None
    except _RefusedError as refused:
        raise error(refused.what, where=where, fix=refused.fix) from None


class _RefusedError(TriosimError):
    """What Python's reader of JSON would accept."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for number, (key, _) in enumerate(pairs) if key in dict(pairs[:number]))
        raise _RefusedError(f"has the key '{twice:.60}' twice in one object", fix="keep one of the two")
    return found


def _finite(digits: str) -> float:
    if math.isinf(number := float(digits)):
        raise _RefusedError(f"holds {digits}, which is too large for a number", fix="no quantity is so large")
    return number


def _no_constant(name: str) -> float:
    raise _RefusedError(f"holds {name}, which is not a number in JSON", fix="leave it out, or write null")


def _whole(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise _RefusedError(f"holds a number of {len(digits)} digits", fix="no quantity has so many")
    return int(digits)
