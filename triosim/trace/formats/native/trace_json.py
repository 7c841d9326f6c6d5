"""The native trace format, ``trace.json``: one step's operators and tensors (docs/trace-format.md, trace.schema.json).

Every value is checked, by hand and not by a schema library, so that 50,000 operators are read in under a second.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any

from triosim.errors import TraceError
from triosim.garbage_collector import without_collecting
from triosim.input_files.limits import ELEMENTS
from triosim.input_files.reading import head, read_object
from triosim.output_files import writing_text
from triosim.trace.formats.native.checks import LARGEST_INTEGER, Checks, shown
from triosim.trace.formats.native.records import communication, keys_of, marks, storages, to_row
from triosim.trace.trace import CATEGORIES, DTYPE_BYTES, PHASES, Operator, Tensor, Trace
from triosim.units import LONGEST_SECONDS, SHORTEST_SECONDS

NAME = "json"
SCHEMA = "triosim-trace/1"

_OPTIONAL_TRACE_KEYS = ("model", "gpu", "times", "step_seconds", "software", "marks", "storages")
#: The keys of each kind of object, and whether each is required.
TRACE_KEYS = dict.fromkeys(("schema", "batch_size", "tensors", "operators"), True) | dict.fromkeys(
    _OPTIONAL_TRACE_KEYS, False
)
TENSOR_KEYS = {"id": True, "shape": True, "dtype": True, "category": True, "storage": False, "parameter": False}
OPERATOR_KEYS = keys_of(Operator)
del OPERATOR_KEYS["recomputed"]  # which a simulation finds out

#: The largest values of an operator's optional numbers.
_MOST = {"busy_seconds": LONGEST_SECONDS, "host_seconds": LONGEST_SECONDS, "flops": 1e30, "relative_error": 1e6}

_NEEDED = tuple(key for key, needed in OPERATOR_KEYS.items() if needed)
_needed = itemgetter(*_NEEDED)
_OPERATOR_NEEDED = frozenset(_NEEDED)
_TENSOR_NEEDED = frozenset(key for key, needed in TENSOR_KEYS.items() if needed)
_CATEGORIES = frozenset(CATEGORIES)
_PHASES = frozenset(PHASES)


def recognises(path: Path) -> bool:
    """Whether the file says that it is a triosim trace, of whatever version."""
    return path.is_file() and re.search(rb'"schema"\s*:\s*"triosim-trace', head(path)) is not None


def read(path: Path) -> Trace:
    """Return the trace in a file. Raises ``TraceError`` that names the file and the key that is wrong."""
    with without_collecting():
        return TraceReader(str(path)).trace(read_object(path, finite=False))


def write(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Write a trace, one tensor or operator a line; compressed where the path ends in ``.gz``."""
    text = "".join(lines(trace))
    with writing_text(path) as file:
        file.write(text)


class TraceReader(Checks):
    """Checks each value and builds the trace."""

    def trace(self, data: dict[str, Any]) -> Trace:
        """Return the trace that a JSON object describes."""
        schema = data.get("schema")
        if schema != SCHEMA:
            self.keys(data, {"schema": True, **dict.fromkeys(data, False)}, "")
            named = f"{schema!r} " if isinstance(schema, str) else ""
            self.fail("schema", f"{named}is not a version that this triosim reads", f"it reads '{SCHEMA}'")
        self.keys(data, TRACE_KEYS, "")
        batch_size = self.integer(data["batch_size"], "batch_size", least=1)
        model = self.text(data.get("model", "unknown"), "model")
        gpu = self.text(data.get("gpu", "unknown"), "gpu")
        times = self.text(data.get("times", "measured"), "times")
        step = self.number(data.get("step_seconds"), "step_seconds", LONGEST_SECONDS)
        software = self.mapping(data.get("software", {}), "software", '{"torch": "2.9.0"}')
        for key, value in software.items():
            self.text(value, f"software.{key}")
            self.text(key, "software")
        tensors = self.tensors(self.rows(data["tensors"], "tensors", "a list of tensors"))
        self.check_batch(batch_size, [tensor.shape for tensor in tensors.values() if tensor.category == "input"])
        rows = self.rows(data["operators"], "operators", "a list of operators")
        if not rows:
            self.fail("operators", "the trace has no operators", "capture at least one step")
        operators = self.operators(rows, tensors)
        if (together := sum([one.seconds for one in operators])) > LONGEST_SECONDS:
            longest = max(range(len(operators)), key=lambda number: operators[number].seconds)
            what = f"{operators[longest].seconds:g} s, of the {together:g} s of all operators, are too many"
            self.fail(f"operators[{longest}].seconds", what, f"a step takes at most {LONGEST_SECONDS:g} s")
        marked = marks(self, data.get("marks", []), len(operators))
        stored = storages(self, data.get("storages", []), len(operators))
        return Trace(operators, batch_size, model, gpu, times, step, software, self.file, marked, stored)

    def check_batch(self, batch_size: int, inputs: list[tuple[int, ...]]) -> None:
        """Check that an input has so many samples along its first dimension, or its second, or so many ends of sequences."""
        first = {shape[0] for shape in inputs if shape and shape[0]}
        others = {shape[1] for shape in inputs if len(shape) > 1} | {
            shape[0] - 1 for shape in inputs if len(shape) == 1
        }
        if first and batch_size not in others and all(size % batch_size for size in first):
            shown_inputs = ", ".join(map(str, inputs[:2]))
            self.fail(
                "batch_size", f"{batch_size} samples are in no input: {shown_inputs}", "give the inputs' batch size"
            )

    def tensors(self, items: list[Any]) -> dict[int, Tensor]:
        """Return the tensors by id."""
        found: dict[int, Tensor] = {}
        linked: list[tuple[int, int]] = []
        plain = _all_integers(items, "shape")
        for index, item in enumerate(items):
            if type(item) is not dict or not _TENSOR_NEEDED <= item.keys() <= TENSOR_KEYS.keys():
                self.keys(item, TENSOR_KEYS, f"tensors[{index}]")
            number, shape, dtype, category = item["id"], item["shape"], item["dtype"], item["category"]
            storage, parameter = item.get("storage"), item.get("parameter")
            if type(number) is not int or not 0 <= number <= LARGEST_INTEGER:
                self.integer(number, f"tensors[{index}].id")
            if number in found:
                self.fail(f"tensors[{index}].id", f"there is another tensor with the id {number}", "ids are unique")
            if type(shape) is not list:
                self.rows(shape, f"tensors[{index}].shape", "[128, 3, 224, 224]")
            if not plain or (shape and min(shape) < 0):
                for dim, size in enumerate(shape):
                    self.integer(size, f"tensors[{index}].shape[{dim}]")
            if (elements := math.prod(shape)) > ELEMENTS.most:
                ELEMENTS.check(elements, f"{self.file}: tensors[{index}].shape", TraceError)
            if type(dtype) is not str or dtype not in DTYPE_BYTES:
                self.choice(dtype, tuple(DTYPE_BYTES), f"tensors[{index}].dtype")
            if type(category) is not str or category not in _CATEGORIES:
                self.choice(category, CATEGORIES, f"tensors[{index}].category")
            if storage is None:
                storage = -1
            elif type(storage) is not int or not 0 <= storage <= LARGEST_INTEGER:
                self.integer(storage, f"tensors[{index}].storage")
            if parameter is not None:
                self.integer(parameter, f"tensors[{index}].parameter")
                linked.append((index, parameter))
            found[number] = Tensor(number, tuple(shape), dtype, category, storage, parameter)
        for index, parameter in linked:
            if parameter not in found or found[parameter].category != "parameter":
                missing = f"there is no tensor {parameter}"
                what = f"tensor {parameter} is not a parameter" if parameter in found else missing
                self.fail(f"tensors[{index}].parameter", what, "name the id of a tensor of the category 'parameter'")
        return found

    def operators(self, items: list[Any], tensors: dict[int, Tensor]) -> tuple[Operator, ...]:
        """Return the operators in their order."""
        found: dict[int, Operator] = {}
        texts: dict[str, str] = {}  # each text once, with the key where it first stood
        find = tensors.__getitem__
        plain = _all_integers(items, "inputs") and _all_integers(items, "outputs")
        for index, item in enumerate(items):
            if type(item) is not dict or not _OPERATOR_NEEDED <= item.keys() <= OPERATOR_KEYS.keys():
                self.keys(item, OPERATOR_KEYS, f"operators[{index}]")
            number, name, phase, layer, inputs, outputs, seconds = _needed(item)
            if not (
                (type(number) is int and 0 <= number <= LARGEST_INTEGER and number not in found)
                and (type(name) is str and name and type(layer) is str and type(phase) is str and phase in _PHASES)
                and (type(seconds) is float and (seconds == 0 or SHORTEST_SECONDS <= seconds <= LONGEST_SECONDS))
            ):
                seconds = self.checked_seconds(item, index, found)
            texts.setdefault(name, f"operators[{index}].name")
            texts.setdefault(layer, f"operators[{index}].layer")
            details = self.details(item, index, texts) if len(item) > len(_NEEDED) else ()
            try:
                if not plain:
                    raise KeyError
                read, made = tuple(map(find, inputs)), tuple(map(find, outputs))
            except (KeyError, TypeError):
                read, made = (self.named(item[key], tensors, index, key) for key in ("inputs", "outputs"))
            found[number] = Operator(number, name, phase, layer, read, made, seconds, *details)
        earlier: set[int] = set()
        for index, operator in enumerate(found.values()):
            if operator.forward is not None:
                self.check_forward(operator.forward, found.get(operator.forward), index)
                if operator.forward not in earlier:
                    what = f"operator {operator.forward} comes later than its backward pass"
                    self.fail(f"operators[{index}].forward", what, "give operators in the order in which they ran")
            earlier.add(operator.id)
        for text, where in texts.items():
            self.text(text, where)
        return tuple(found.values())

    def checked_seconds(self, item: dict[str, Any], index: int, found: dict[int, Operator]) -> float:
        """Return an operator's seconds; each required value is checked by itself, so that the error names the wrong one."""
        key_path = f"operators[{index}]"
        if self.integer(item["id"], f"{key_path}.id") in found:
            self.fail(f"{key_path}.id", f"there is another operator with the id {item['id']}", "ids are unique")
        self.text(item["name"], f"{key_path}.name", filled=True)
        self.text(item["layer"], f"{key_path}.layer")
        self.choice(item["phase"], PHASES, f"{key_path}.phase")
        seconds = self.number(item["seconds"], f"{key_path}.seconds", LONGEST_SECONDS)
        if seconds is None:
            self.fail(f"{key_path}.seconds", "is absent", "every operator needs its time in seconds")
        if 0 < seconds < SHORTEST_SECONDS:
            self.fail(
                f"{key_path}.seconds", f"{seconds:g} is too small", f"it must be 0, or at least {SHORTEST_SECONDS:g}"
            )
        return seconds

    def details(self, item: dict[str, Any], index: int, texts: dict[str, str]) -> tuple[Any, ...]:
        """Return an operator's optional values, in the order of the fields of ``Operator`` from ``busy_seconds`` on."""
        get = item.get
        busy, host, flops, error = (
            self.number(item[key], f"operators[{index}].{key}", most) if key in item else None
            for key, most in _MOST.items()
        )
        forward = get("forward")
        if forward is not None and type(forward) is not int:
            self.integer(forward, f"operators[{index}].forward")
        kernels = self.kernels(item["kernels"], index, texts) if "kernels" in item else ()
        model, stream = get("predicted_by"), get("stream", "compute")
        if model is not None and (type(model) is not str or not model or model not in texts):
            where = f"operators[{index}].predicted_by"
            texts[self.text(model, where, filled=True)] = where
        attributes = get("attributes")
        attributes = {} if attributes is None else self.attributes(attributes, f"operators[{index}].attributes")
        if type(stream) is not str or not stream or stream not in texts:
            texts[self.text(stream, f"operators[{index}].stream", filled=True)] = f"operators[{index}].stream"
        asked = get("communication")
        if asked is not None:
            asked = communication(self, asked, f"operators[{index}].communication")
        return busy, host, forward, flops, kernels, model, error, attributes, stream, asked

    def kernels(self, value: Any, index: int, texts: dict[str, str]) -> tuple[str, ...]:
        """Return the names of an operator's kernels."""
        for number, kernel in enumerate(self.rows(value, f"operators[{index}].kernels", "a list of names")):
            if type(kernel) is not str:
                self.text(kernel, f"operators[{index}].kernels[{number}]")
            texts.setdefault(kernel, f"operators[{index}].kernels[{number}]")
        return tuple(value)

    def check_forward(self, number: int, forward: Operator | None, index: int) -> None:
        """Check that an operator differentiates one of the forward pass."""
        if forward is None or forward.phase != "forward":
            missing = f"there is no operator {number}"
            what = missing if forward is None else f"operator {number} is not one of the forward pass"
            self.fail(f"operators[{index}].forward", what, "name the id of a forward operator")

    def attributes(self, value: Any, key_path: str) -> dict[str, Any]:
        """Return an operator's attributes: numbers, texts, truth values, or lists of them."""
        for key, given in self.mapping(value, key_path, '{"dim": 1}').items():
            self.text(key, key_path, filled=True)
            for one in given if type(given) is list else (given,):
                if type(one) is str:
                    self.text(one, f"{key_path}.{key}")
                elif type(one) not in (int, float, bool) or not math.isfinite(one) or abs(one) > LARGEST_INTEGER:
                    self.fail(f"{key_path}.{key}", f"{shown(one)} is not a number, text or truth value")
        found: dict[str, Any] = value
        return found

    def named(self, ids: Any, tensors: dict[int, Tensor], index: int, key: str) -> tuple[Tensor, ...]:
        """Return the tensors that an operator names."""
        for position, number in enumerate(self.rows(ids, f"operators[{index}].{key}", "a list of tensor ids")):
            self.integer(number, f"operators[{index}].{key}[{position}]")
            if number not in tensors:
                fix = "list it under 'tensors', or leave it out"
                self.fail(f"operators[{index}].{key}[{position}]", f"there is no tensor {number}", fix)
        return tuple(tensors[number] for number in ids)


def _all_integers(items: list[Any], key: str) -> bool:
    """Whether each item has a list of integers under the key: a check of all at once, which spares one of each."""
    try:
        lists = [item[key] for item in items]
        return set(map(type, lists)) <= {list} and set(map(type, chain.from_iterable(lists))) <= {int}
    except (KeyError, TypeError, IndexError):
        return False


def lines(trace: Trace) -> Iterator[str]:
    """Yield the text of a trace in pieces. Raises ``TraceError`` where one id is two tensors."""
    tensors: dict[int, Tensor] = {}
    for operator in trace.operators:
        for tensor in (*operator.inputs, *operator.outputs):
            if tensors.setdefault(tensor.id, tensor) != tensor:
                raise TraceError(f"two different tensors have the id {tensor.id}", where=f"operator {operator.id}")
    head = {
        "schema": SCHEMA,
        "model": trace.model,
        "gpu": trace.gpu,
        "batch_size": trace.batch_size,
        "times": trace.times,
        "step_seconds": trace.step_seconds,
        "software": dict(trace.software),
    }
    yield "{\n"
    for key, value in head.items():
        if value is not None:
            yield f"{json.dumps(key)}: {json.dumps(value)},\n"
    yield '"tensors": [\n'
    yield ",\n".join(_json(_tensor(tensor, tensors)) for tensor in tensors.values())
    yield '\n],\n"operators": [\n'
    yield ",\n".join(_json(_operator(operator)) for operator in trace.operators)
    for name, records in (("marks", trace.marks), ("storages", trace.storages)):
        if records:
            yield f'\n],\n"{name}": [\n'
            yield ",\n".join(_json(to_row(record)) for record in records)
    yield "\n]\n}\n"


def _json(row: dict[str, Any]) -> str:
    return json.dumps(row, separators=(",", ":"))


def _tensor(tensor: Tensor, known: dict[int, Tensor]) -> dict[str, Any]:
    row: dict[str, Any] = {"id": tensor.id, "shape": tensor.shape, "dtype": tensor.dtype, "category": tensor.category}
    if tensor.storage >= 0:
        row["storage"] = tensor.storage
    if tensor.parameter in known:
        row["parameter"] = tensor.parameter
    return row


def _operator(operator: Operator) -> dict[str, Any]:
    row: dict[str, Any] = {key: getattr(operator, key) for key in _NEEDED}
    for key in ("inputs", "outputs"):
        row[key] = [tensor.id for tensor in row[key]]
    for key in ("busy_seconds", "host_seconds", "forward", "flops", "predicted_by", "relative_error"):
        value = getattr(operator, key)
        if value is not None:
            row[key] = value
    if operator.kernels:
        row["kernels"] = list(operator.kernels)
    if operator.attributes:
        row["attributes"] = dict(operator.attributes)
    if operator.stream != "compute":
        row["stream"] = operator.stream
    if operator.communication is not None:
        row["communication"] = to_row(operator.communication)
    return row
