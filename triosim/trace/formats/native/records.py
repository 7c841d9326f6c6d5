"""Communications, marks and storages of a captured step as JSON objects in triosim's own format.

Their keys are the fields of the classes in ``triosim.trace``; a field that has its default value is left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, cast, get_args

from triosim.trace.formats.native.checks import LARGEST_INTEGER, Checks, shown
from triosim.trace.trace import (
    CATEGORIES,
    DTYPE_BYTES,
    Category,
    Communication,
    CommunicationKind,
    Mark,
    MarkKind,
    Storage,
)

#: No transfer is larger.
MOST_BYTES = 2.0**80


def keys_of(kind: type) -> dict[str, bool]:
    """Return the names of a dataclass's fields, and whether each is required."""
    return {field.name: field.default is field.default_factory is MISSING for field in fields(kind)}


COMMUNICATION_KEYS = keys_of(Communication)
MARK_KEYS = keys_of(Mark)
STORAGE_KEYS = keys_of(Storage)

_DEFAULTS: Mapping[type, Mapping[str, Any]] = {
    kind: {field.name: field.default for field in fields(kind)} for kind in (Communication, Mark, Storage)
}
_DTYPES = (*DTYPE_BYTES, "")


def to_row(record: Communication | Mark | Storage) -> dict[str, Any]:
    """Return a record as a JSON object."""
    defaults = _DEFAULTS[type(record)]
    return {name: value for name, default in defaults.items() if (value := getattr(record, name)) != default}


def communication(check: Checks, row: Any, key_path: str) -> Communication:
    """Return the communication of an operator. Raises ``TraceError`` that names the key that is wrong."""
    check.keys(row, COMMUNICATION_KEYS, key_path)
    check.choice(row["kind"], get_args(CommunicationKind), f"{key_path}.kind")
    nbytes = check.number(row["nbytes"], f"{key_path}.nbytes", MOST_BYTES)
    if nbytes is None:
        check.fail(f"{key_path}.nbytes", "is absent", "it is required")
    kind: CommunicationKind = row["kind"]
    between_two = kind in ("send", "recv")
    if between_two and row.get("peer") is None:
        check.fail(f"{key_path}.peer", "is absent", f"a {kind} names its peer's index in the group")
    if not between_two and row.get("peer") is not None:
        check.fail(f"{key_path}.peer", "a collective has no peer", "leave it out")
    return Communication(
        kind,
        check.text(row["group"], f"{key_path}.group", filled=True),
        nbytes,
        _integer(check, row, "root", key_path),
        _integer(check, row, "peer", key_path),
        _integer(check, row, "tag", key_path) or 0,
        _integer(check, row, "work", key_path),
        _integer(check, row, "batch", key_path),
        _shares(check, row.get("shares"), nbytes, key_path),
        check.text(row.get("line", ""), f"{key_path}.line"),
    )


def marks(check: Checks, rows: Any, operators: int) -> tuple[Mark, ...]:
    """Return the marks of a trace with some number of operators, in order."""
    found = []
    before = 0
    for index, row in enumerate(check.rows(rows, "marks")):
        key_path = f"marks[{index}]"
        check.keys(row, MARK_KEYS, key_path)
        position = check.integer(row["position"], f"{key_path}.position", least=before)
        if position > operators:
            check.fail(f"{key_path}.position", f"{position} is beyond the {operators} operators")
        check.choice(row["kind"], get_args(MarkKind), f"{key_path}.kind")
        before, kind = position, cast(MarkKind, row["kind"])
        stream, number = row.get("stream"), _integer(check, row, "number", key_path)
        if stream is not None:
            check.text(stream, f"{key_path}.stream", filled=True)
        for key, value in (("stream", stream), ("number", number)):
            if value is None and kind != "synchronize":
                check.fail(f"{key_path}.{key}", "is absent", f"a mark of the kind '{kind}' needs it")
        found.append(Mark(position, kind, stream, number, check.text(row.get("source", ""), f"{key_path}.source")))
    return tuple(found)


def storages(check: Checks, rows: Any, operators: int) -> tuple[Storage, ...]:
    """Return the device memory of a step, in the order of birth."""
    found = []
    least = -LARGEST_INTEGER
    for index, row in enumerate(check.rows(rows, "storages")):
        key_path = f"storages[{index}]"
        check.keys(row, STORAGE_KEYS, key_path)
        born = least = check.integer(row["born"], f"{key_path}.born", least=least)
        died, last = row["died"], row["last_operator"]
        if died is not None:
            check.integer(died, f"{key_path}.died", least=born)
        for key, value in (("operator", row["operator"]), ("last_operator", last)):
            if (value is not None or key == "operator") and check.integer(value, f"{key_path}.{key}", -1) >= operators:
                check.fail(f"{key_path}.{key}", f"{value} is beyond the {operators} operators")
        shape = check.rows(row.get("shape", []), f"{key_path}.shape")
        for number, size in enumerate(shape):
            check.integer(size, f"{key_path}.shape[{number}]")
        check.choice(row["category"], CATEGORIES, f"{key_path}.category")
        check.choice(row.get("dtype", ""), _DTYPES, f"{key_path}.dtype")
        found.append(
            Storage(
                check.integer(row["id"], f"{key_path}.id"),
                check.integer(row["nbytes"], f"{key_path}.nbytes"),
                cast(Category, row["category"]),
                check.text(row["layer"], f"{key_path}.layer"),
                born,
                died,
                row["operator"],
                last,
                check.text(row.get("stream", "compute"), f"{key_path}.stream", filled=True),
                tuple(shape),
                row.get("dtype", ""),
            )
        )
    return tuple(found)


def _integer(check: Checks, row: Mapping[str, Any], key: str, key_path: str) -> int | None:
    value = row.get(key)
    return None if value is None else check.integer(value, f"{key_path}.{key}")


def _shares(check: Checks, value: Any, nbytes: float, key_path: str) -> tuple[float, ...] | None:
    """Return unequal shares, which together are the bytes of the collective."""
    if value is None:
        return None
    found = []
    for index, share in enumerate(check.rows(value, f"{key_path}.shares")):
        number = check.number(share, f"{key_path}.shares[{index}]", MOST_BYTES)
        if number is None:
            check.fail(f"{key_path}.shares[{index}]", "is null", "write a number of bytes")
        found.append(number)
    if not math.isclose(math.fsum(found), nbytes, rel_tol=1e-9, abs_tol=1e-6):
        check.fail(f"{key_path}.shares", f"{shown(value)} do not sum to the {nbytes:g} bytes of the collective")
    return tuple(found)
