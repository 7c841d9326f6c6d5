"""triosim's own trace format: what is written is read back, and what is wrong is named."""

from __future__ import annotations

import copy
import gzip
import json
import math
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import triosim
from triosim.errors import OutputError, TraceError
from triosim.trace import (
    CATEGORIES,
    DTYPE_BYTES,
    PHASES,
    Communication,
    CommunicationKind,
    Mark,
    MarkKind,
    Operator,
    Storage,
    Tensor,
    Trace,
)
from triosim.trace.formats.native import records as json_records
from triosim.trace.formats.native import trace_json as json_format

X = Tensor(1, (4, 8), "float32", "input", 1)
W = Tensor(2, (16, 8), "float32", "parameter", 2)
Y = Tensor(3, (4, 16), "float32", "output", 3)
DY = Tensor(4, (4, 16), "float32", "gradient", 4)
DW = Tensor(5, (16, 8), "float32", "gradient", 5, 2)
M = Tensor(6, (16, 8), "float32", "optimizer_state", 6, 2)

TRACE = Trace(
    (
        Operator(1, "aten::linear", "forward", "fc", (X, W), (Y,), 2e-5, 1.5e-5, 3e-6, None, 1024.0, ("sgemm",)),
        Operator(2, "aten::ones_like", "backward", "fc", (Y,), (DY,), 1e-6),
        Operator(3, "AddmmBackward0", "backward", "fc", (DY, X, W), (DW,), 4e-5, forward=1),
        Operator(4, "aten::_foreach_add_", "optimizer", "optimizer", (W, DW, M), (W, M), 0.0),
        Operator(
            5,
            "c10d::allreduce_",
            "backward",
            "",
            (DW,),
            (DW,),
            0.0,
            stream="side",
            communication=Communication("all_to_all", "world", 512.0, 0, None, 3, 1, 2, (256.0, 256.0)),
        ),
    ),
    batch_size=4,
    model="tiny",
    gpu="a GPU",
    step_seconds=7e-5,
    software={"torch": "2.13.0"},
    marks=(
        Mark(0, "record", "compute", 1),
        Mark(1, "wait", "side", 1),
        Mark(5, "wait_work", "compute", 1),
        Mark(5, "synchronize", source="train.py:3"),
    ),
    storages=(
        Storage(2, 512, "parameter", "fc", -1, None, -1, None, shape=(16, 8), dtype="float32"),
        Storage(5, 512, "gradient", "fc", 1, 2, 2, 4, "side"),
    ),
)


@pytest.fixture
def good(tmp_path: Path) -> dict[str, Any]:
    triosim.save_trace(TRACE, tmp_path / "good.json")
    found: dict[str, Any] = json.loads((tmp_path / "good.json").read_text())
    return found


def read_back(data: object, tmp_path: Path) -> Trace:
    path = tmp_path / "trace.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return triosim.load_trace(path)


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz", "named.txt"])
def test_a_trace_is_the_same_after_writing_and_reading(tmp_path: Path, name: str) -> None:
    triosim.save_trace(TRACE, tmp_path / name)
    read = triosim.load_trace(tmp_path / name)
    assert read.operators == TRACE.operators
    assert (read.batch_size, read.model, read.gpu, read.step_seconds) == (4, "tiny", "a GPU", 7e-5)
    assert read.software == {"torch": "2.13.0"}
    assert (read.marks, read.storages) == (TRACE.marks, TRACE.storages)
    assert read.source == str(tmp_path / name)


def test_compression_is_known_by_content(tmp_path: Path) -> None:
    triosim.save_trace(TRACE, tmp_path / "trace.json.gz")
    (tmp_path / "trace.json.gz").rename(tmp_path / "trace.json")
    assert triosim.load_trace(tmp_path / "trace.json").operators == TRACE.operators


def test_the_same_trace_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.json.gz", "b.json.gz"):
        triosim.save_trace(TRACE, tmp_path / name)
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()


def test_a_tensor_without_a_storage_has_its_own(good: dict[str, Any], tmp_path: Path) -> None:
    for tensor in good["tensors"]:
        del tensor["storage"]
    storages = [tensor.storage for tensor in read_back(good, tmp_path).tensors.values()]
    assert len(set(storages)) == len(storages)


ASKED = ["operators", 4, "communication"]
ASKED_PLACE = "operators[4].communication"

WRONG: list[tuple[str, list[Any], Any, str, str]] = [
    ("negative time", ["operators", 2, "seconds"], -1, "operators[2].seconds", "negative"),
    ("NaN time", ["operators", 2, "seconds"], math.nan, "operators[2].seconds", "finite"),
    ("infinite time", ["operators", 0, "busy_seconds"], math.inf, "operators[0].busy_seconds", "finite"),
    ("time of no time", ["operators", 0, "seconds"], 1e-300, "operators[0].seconds", "too small"),
    ("time of 300 years", ["operators", 0, "seconds"], 1e10, "operators[0].seconds", "too large"),
    ("time that is null", ["operators", 0, "seconds"], None, "operators[0].seconds", "absent"),
    ("time that is a text", ["operators", 0, "seconds"], "1", "operators[0].seconds", "not a number"),
    ("time that is a bool", ["operators", 0, "seconds"], True, "operators[0].seconds", "not a number"),
    ("missing tensor", ["operators", 1, "inputs", 0], 99, "operators[1].inputs[0]", "there is no tensor 99"),
    ("tensor by a fraction", ["operators", 1, "inputs", 0], 1.0, "operators[1].inputs[0]", "not an integer"),
    ("tensor by true", ["operators", 1, "inputs", 0], True, "operators[1].inputs[0]", "not an integer"),
    ("inputs no list", ["operators", 1, "inputs"], 3, "operators[1].inputs", "not a list"),
    ("no operators", ["operators"], [], "operators", "no operators"),
    ("operators no list", ["operators"], {}, "operators", "not a list"),
    ("operator no object", ["operators", 1], [], "operators[1]", "not an object"),
    ("tensor no object", ["tensors", 1], None, "tensors[1]", "not an object"),
    ("bad dtype", ["tensors", 0, "dtype"], "float31", "tensors[0].dtype", "did you mean 'float"),
    ("bad category", ["tensors", 0, "category"], "parametre", "tensors[0].category", "did you mean 'parameter'?"),
    ("bad phase", ["operators", 0, "phase"], "forwards", "operators[0].phase", "did you mean 'forward'?"),
    ("unhashable dtype", ["tensors", 0, "dtype"], [1], "tensors[0].dtype", "not a text"),
    ("duplicate tensor", ["tensors", 1, "id"], 1, "tensors[1].id", "another tensor"),
    ("duplicate operator", ["operators", 1, "id"], 1, "operators[1].id", "another operator"),
    ("shape of a fraction", ["tensors", 0, "shape", 1], 8.0, "tensors[0].shape[1]", "not an integer"),
    ("negative shape", ["tensors", 0, "shape", 1], -8, "tensors[0].shape[1]", "negative"),
    ("astronomic shape", ["tensors", 0, "shape"], [2**40, 2**40], "tensors[0].shape", "1.2e+24 elements of a tensor"),
    ("batch of none", ["batch_size"], 0, "batch_size", "at least 1"),
    ("batch in a list", ["batch_size"], [4], "batch_size", "not an integer"),
    ("batch of a half", ["batch_size"], 0.5, "batch_size", "not an integer"),
    ("later version", ["schema"], "triosim-trace/2", "schema", "triosim-trace/1"),
    ("version is a number", ["schema"], 1, "schema", "triosim-trace/1"),
    ("forward of nothing", ["operators", 2, "forward"], 77, "operators[2].forward", "no operator 77"),
    ("forward of backward", ["operators", 2, "forward"], 2, "operators[2].forward", "forward pass"),
    ("parameter of nothing", ["tensors", 4, "parameter"], 77, "tensors[4].parameter", "no tensor 77"),
    ("parameter that is none", ["tensors", 4, "parameter"], 1, "tensors[4].parameter", "not a parameter"),
    ("empty name", ["operators", 0, "name"], "", "operators[0].name", "empty"),
    ("layer no text", ["operators", 0, "layer"], 7, "operators[0].layer", "not a text"),
    ("half a character", ["operators", 0, "layer"], "\ud800", "operators[0].layer", "surrogate"),
    ("kernels no list", ["operators", 0, "kernels"], "k", "operators[0].kernels", "not a list"),
    ("kernel no text", ["operators", 0, "kernels"], [1], "operators[0].kernels[0]", "not a text"),
    ("infinite work", ["operators", 0, "flops"], math.inf, "operators[0].flops", "finite"),
    ("software no text", ["software", "torch"], 2, "software.torch", "not a text"),
    ("software a list", ["software"], [], "software", "not an object"),
    ("a typing error", ["operators", 0, "secondss"], 1.0, "operators[0].secondss", "did you mean 'seconds'?"),
    ("unknown key", ["batchsize"], 1, "batchsize", "did you mean 'batch_size'?"),
    ("huge id", ["tensors", 0, "id"], 2**63, "tensors[0].id", "too large"),
    ("unnamed stream", ["operators", 4, "stream"], "", "operators[4].stream", "empty"),
    ("unhashable stream", ["operators", 4, "stream"], [], "operators[4].stream", "not a text"),
    ("bad kind", [*ASKED, "kind"], "allreduce", f"{ASKED_PLACE}.kind", "did you mean 'all_reduce'?"),
    ("no size", [*ASKED, "nbytes"], None, f"{ASKED_PLACE}.nbytes", "absent"),
    ("no group", [*ASKED, "group"], "", f"{ASKED_PLACE}.group", "empty"),
    ("a peer of all", [*ASKED, "peer"], 1, f"{ASKED_PLACE}.peer", "a collective has no peer"),
    ("a send to nobody", [*ASKED, "kind"], "send", f"{ASKED_PLACE}.peer", "absent"),
    ("shares of less", [*ASKED, "shares", 0], 1, f"{ASKED_PLACE}.shares", "do not sum to the 512 bytes"),
    ("unknown in it", [*ASKED, "groups"], 1, f"{ASKED_PLACE}.groups", "did you mean 'group'?"),
    ("marks no list", ["marks"], {}, "marks", "not a list"),
    ("marks out of order", ["marks", 0, "position"], 2, "marks[1].position", "at least 2"),
    ("mark beyond the end", ["marks", 3, "position"], 6, "marks[3].position", "beyond the 5 operators"),
    ("mark of what", ["marks", 0, "kind"], "waits", "marks[0].kind", "did you mean 'wait'?"),
    ("event without a number", ["marks", 0, "number"], None, "marks[0].number", "'record' needs it"),
    ("wait on no stream", ["marks", 1, "stream"], None, "marks[1].stream", "'wait' needs it"),
    ("storages out of order", ["storages", 0, "born"], 2, "storages[1].born", "at least 2"),
    ("dead before birth", ["storages", 1, "died"], 0, "storages[1].died", "at least 1"),
    ("asked for later", ["storages", 1, "operator"], 5, "storages[1].operator", "beyond the 5 operators"),
    ("negative storage", ["storages", 1, "nbytes"], -512, "storages[1].nbytes", "negative"),
    ("storage of what", ["storages", 1, "category"], "grad", "storages[1].category", "did you mean 'gradient'?"),
]


@pytest.mark.parametrize(("keys", "value", "place", "said"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG])
def test_an_error_names_file_key_and_what_is_wrong(
    good: dict[str, Any], tmp_path: Path, keys: list[Any], value: Any, place: str, said: str
) -> None:
    target: Any = good
    for key in keys[:-1]:
        target = target[key]
    target[keys[-1]] = value
    with pytest.raises(TraceError) as error:
        read_back(good, tmp_path)
    message = str(error.value)
    assert f"trace.json: {place}: " in message
    assert said in message
    assert "\n" not in message


def required_keys() -> list[list[Any]]:
    tables = [([], json_format.TRACE_KEYS), (["tensors", 1], json_format.TENSOR_KEYS)]
    tables.append((["operators", 1], json_format.OPERATOR_KEYS))
    return [[*place, key] for place, keys in tables for key, required in keys.items() if required]


@pytest.mark.parametrize("keys", required_keys(), ids=lambda keys: ".".join(map(str, keys)))
def test_an_absent_key_is_named(good: dict[str, Any], tmp_path: Path, keys: list[Any]) -> None:
    target: Any = good
    for key in keys[:-1]:
        target = target[key]
    del target[keys[-1]]
    with pytest.raises(TraceError, match=rf"{keys[-1]}: is (absent|no version)"):
        read_back(good, tmp_path)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "7", "null", "not json", "[" * 100_000, '{"a": ' + "9" * 5000 + "}", "\x00"]
)
def test_what_is_no_trace_is_said_to_be_none(tmp_path: Path, text: str) -> None:
    with pytest.raises(TraceError, match=r"trace\.json"):
        read_back(text, tmp_path)


def test_a_truncated_file_names_line_and_column(tmp_path: Path) -> None:
    triosim.save_trace(TRACE, tmp_path / "whole.json")
    text = (tmp_path / "whole.json").read_text()
    with pytest.raises(TraceError, match=r"trace\.json: line \d+ column \d+: is not JSON.*truncated"):
        read_back(text[: len(text) // 2], tmp_path)


@pytest.mark.parametrize("keep", [1, 2, 9, 50, 200])
def test_a_truncated_compressed_file_is_said_to_be_damaged(tmp_path: Path, keep: int) -> None:
    data = gzip.compress(json.dumps({"schema": "triosim-trace/1", "filler": list(range(300))}).encode())
    (tmp_path / "trace.json.gz").write_bytes(data[:keep])
    with pytest.raises(TraceError, match=r"trace\.json\.gz"):
        triosim.load_trace(tmp_path / "trace.json.gz")


def test_a_binary_file_is_said_to_be_no_text(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(bytes(range(128, 256)))
    with pytest.raises(TraceError, match=r"model\.bin: is not text: byte 0"):
        triosim.load_trace(tmp_path / "model.bin")


def test_nothing_is_written_where_nothing_may_be(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="no_such_folder"):
        triosim.save_trace(TRACE, tmp_path / "no_such_folder" / "trace.json")
    assert list(tmp_path.iterdir()) == []


def test_a_trace_in_which_one_id_is_two_tensors_is_not_written(tmp_path: Path) -> None:
    other = Tensor(1, (5, 8), "float32", "input", 1)
    first = TRACE.operators[0]
    second = Operator(9, "aten::relu", "forward", "r", (other,), (other,), 1e-6)
    with pytest.raises(TraceError, match="two different tensors have the id 1"):
        triosim.save_trace(Trace((first, second), 4), tmp_path / "trace.json")
    assert list(tmp_path.iterdir()) == []


def test_the_published_schema_knows_the_same_keys_as_the_reader() -> None:
    schema = json.loads((Path(json_format.__file__).parent / "trace.schema.json").read_text())
    published = {
        "trace": (schema, json_format.TRACE_KEYS),
        "tensor": (schema["$defs"]["tensor"], json_format.TENSOR_KEYS),
        "operator": (schema["$defs"]["operator"], json_format.OPERATOR_KEYS),
        "communication": (schema["$defs"]["communication"], json_records.COMMUNICATION_KEYS),
        "mark": (schema["$defs"]["mark"], json_records.MARK_KEYS),
        "storage": (schema["$defs"]["storage"], json_records.STORAGE_KEYS),
    }
    for described, keys in published.values():
        assert set(described["properties"]) == set(keys)
        assert set(described["required"]) == {key for key, required in keys.items() if required}
    tensor, operator = schema["$defs"]["tensor"]["properties"], schema["$defs"]["operator"]["properties"]
    assert tensor["dtype"]["enum"] == list(DTYPE_BYTES)
    assert tensor["category"]["enum"] == list(CATEGORIES)
    assert operator["phase"]["enum"] == list(PHASES)
    asked, mark = schema["$defs"]["communication"]["properties"], schema["$defs"]["mark"]["properties"]
    assert asked["kind"]["enum"] == list(get_args(CommunicationKind))
    assert mark["kind"]["enum"] == list(get_args(MarkKind))


#: What other values are compared with, so that the error may name those.
REFERRED = ("id", "category", "phase", "kind", "nbytes", "position", "born")

LITTLE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 9),
    st.integers(2**62, 2**70),
    st.floats(),
    st.text(max_size=4),
    st.lists(st.integers(-1, 5), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(0, 3), max_size=2),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every key and index of a document."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found: list[tuple[Any, ...]] = [path] if path else []
    for key, child in children:
        found += places(child, (*path, key))
    return found


def spelled(path: tuple[Any, ...]) -> str:
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path).lstrip(".")


@pytest.fixture(scope="module")
def mutants(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mutants")
    triosim.save_trace(TRACE, folder / "good.json")
    return folder


@settings(max_examples=600, deadline=None)
@given(data=st.data())
@pytest.mark.slow
def test_whatever_is_changed_in_a_trace_it_is_read_or_the_change_is_named(data: st.DataObject, mutants: Path) -> None:
    document = copy.deepcopy(json.loads((mutants / "good.json").read_text()))
    path = data.draw(st.sampled_from(places(document)))
    target = document
    for key in path[:-1]:
        target = target[key]
    change = data.draw(st.sampled_from(["delete", "value", "rename"]))
    named: tuple[Any, ...] = path
    old = target[path[-1]]
    if change == "value":
        target[path[-1]] = data.draw(LITTLE)
    elif change == "delete" or not isinstance(path[-1], str):
        del target[path[-1]]
    else:
        target[path[-1] + "x"] = target.pop(path[-1])
        named = (*path[:-1], path[-1] + "x")
    file = mutants / "trace.json"
    file.write_text(json.dumps(document))
    try:
        triosim.load_trace(file)
    except TraceError as error:
        message = str(error)
        assert str(file) in message
        assert "\n" not in message
        # Another id, or one element less, is an error where something refers to it.
        moved = isinstance(path[-1], int) or path[-1] in REFERRED or change == "delete"
        if not moved or (change == "delete" and isinstance(path[-1], str) and not isinstance(old, (list, dict))):
            if path[0] == "software":
                assert "software" in message
            else:
                said = [spelled(named), spelled(path), *(["batch_size"] if path[-1] == "shape" else [])]  # an input's
                assert any(place in message for place in said)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_whatever_bytes_are_changed_in_a_trace_it_is_read_or_the_file_is_named(
    data: st.DataObject, mutants: Path
) -> None:
    raw = (mutants / "good.json").read_bytes()
    if data.draw(st.booleans()):
        raw = gzip.compress(raw, mtime=0)
    start = data.draw(st.integers(0, len(raw) - 1))
    length = data.draw(st.integers(0, 20))
    changed = raw[:start] + data.draw(st.binary(max_size=6)) + data.draw(st.sampled_from([raw[start + length :], b""]))
    file = mutants / "bytes.json"
    file.write_bytes(changed)
    message = str(file)
    try:
        triosim.load_trace(file)
    except TraceError as error:
        message = str(error)
    assert str(file) in message


def test_a_backward_pass_before_its_forward_pass_is_refused(good: dict[str, Any], tmp_path: Path) -> None:
    good["operators"].reverse()
    with pytest.raises(TraceError, match=r"operators\[\d\]\.forward: operator 1 comes later than its backward pass"):
        read_back(good, tmp_path)
