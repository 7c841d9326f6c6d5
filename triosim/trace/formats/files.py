"""Opens trace files: compressed or not, by their first bytes, and JSON that may be damaged."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import Any

from triosim.errors import TraceError

GZIP_MAGIC = b"\x1f\x8b"


def head(path: Path, size: int = 65536) -> bytes:
    """Return the first bytes of a file, uncompressed; fewer where it is damaged."""
    with open(path, "rb") as file:
        start = file.read(size)
    if not start.startswith(GZIP_MAGIC):
        return start
    try:
        return zlib.decompressobj(wbits=31).decompress(start, size)
    except zlib.error:
        return b""


def read_text(path: Path) -> str:
    """Return a file's text, uncompressed. Raises ``TraceError`` when it is damaged or is no UTF-8."""
    data = path.read_bytes()
    if data.startswith(GZIP_MAGIC):
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise TraceError(f"is a damaged gzip file ({error})", where=str(path), fix="it may be truncated") from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TraceError(f"is not text: byte {error.start} is not UTF-8", where=str(path)) from None


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file. Raises ``TraceError`` that names line and column where it breaks off."""
    text = read_text(path)
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        truncated = error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated")
        raise TraceError(
            f"is not JSON: {error.msg}",
            where=f"{path}: line {error.lineno} column {error.colno}",
            fix="the file seems to be truncated" if truncated else None,
        ) from None
    except RecursionError:
        raise TraceError("is nested too deeply for a trace", where=str(path)) from None
    except ValueError as error:  # a number of more than 4,300 digits
        raise TraceError(f"is not JSON that can be read: {error}", where=str(path)) from None
    if not isinstance(found, dict):
        raise TraceError("is not a JSON object", where=str(path), fix="a trace begins with {")
    return found
