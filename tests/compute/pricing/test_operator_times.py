"""Times from elsewhere replace the trace's, by operator or layer; what matches nothing is said."""

from __future__ import annotations

from pathlib import Path

import pytest
import traces

from triosim.compute.pricing import operator_times
from triosim.errors import TriosimError
from triosim.trace import Operator


def applied(tmp_path: Path, name: str, text: str) -> list[Operator]:
    path = tmp_path / name
    path.write_text(text)
    return list(operator_times.apply(operator_times.load(path), traces.mlp(), path).operators)


def test_an_operators_time_is_that_of_each_call(tmp_path: Path) -> None:
    after = applied(tmp_path, "times.csv", "operator,time\nrelu,7 us\n")
    assert {op.seconds for op in after if op.name == "aten::relu"} == {7e-6}
    assert {op.seconds for op in after if op.name == "aten::linear"} == {1e-3}


def test_a_layers_time_is_the_sum_of_its_operators_which_keep_their_proportions(tmp_path: Path) -> None:
    after = applied(tmp_path, "times.yaml", "- {layer: fc1, seconds: 0.006}\n")
    assert [op.seconds for op in after if op.layer == "fc1"] == pytest.approx([0.002, 0.004])


def test_a_phase_narrows_an_entry(tmp_path: Path) -> None:
    after = applied(tmp_path, "times.json", '[{"layer": "fc1", "phase": "backward", "seconds": 0.5}]')
    assert [op.seconds for op in after if op.layer == "fc1"] == pytest.approx([0.001, 0.5])


def test_the_later_of_two_entries_holds(tmp_path: Path) -> None:
    after = applied(tmp_path, "times.csv", "operator,id,seconds\nlinear,,0.5\n,1,0.25\n")
    assert [op.seconds for op in after if op.name == "aten::linear"] == [0.25, 0.5, 0.5]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (
            "t.csv",
            "operator,seconds\nlinaer,1\n",
            "t.csv:2: the trace has no operator with operator 'linaer'; did you mean 'linear'?",
        ),
        (
            "t.csv",
            "layer,seconds\nfc1,1\nfc9,1\n",
            "t.csv:3: the trace has no operator with layer 'fc9'; did you mean 'fc2'?",
        ),
        (
            "t.csv",
            "operator,phase,seconds\nlinear,backward,1\n",
            "t.csv:2: the trace has no operator with operator 'linear', phase",
        ),
        ("t.csv", "operator,second\nlinear,1\n", "t.csv:1: unknown column 'second'; did you mean 'seconds'?"),
        ("t.csv", "operator,seconds\nlinear,-1\n", "t.csv:2: a time of -1 seconds; give 0, or 1e-12 to 1e+09"),
        ("t.csv", "operator,time\nlinear,5 lightyears\n", "t.csv:2: unknown unit 'lightyears'"),
        ("t.csv", "operator,seconds\nlinear\n", "t.csv:2: 1 cells under 2 columns"),
        ("t.csv", "operator,seconds\n", "t.csv: holds no times"),
        ("t.yaml", "- {layer: fc1}\n", "t.yaml: entry 1: needs either 'seconds' or 'time'"),
        ("t.yaml", "- {seconds: 1}\n", "t.yaml: entry 1: names no operator"),
        ("t.yaml", "layer: fc1\n", "t.yaml: is not a list"),
        ("t.yaml", "- {layer: fc1", "t.yaml:2: not valid YAML"),
        ("t.json", "[", "t.json: line 1 column 2: is not JSON"),
        ("t.json", '[{"id": "x", "seconds": 1}]', "t.json: entry 1: id: 'x' is not a whole number"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path: Path, name: str, text: str, said: str) -> None:
    with pytest.raises(TriosimError) as caught:
        applied(tmp_path, name, text)
    assert said in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(TriosimError, match=r"absent.csv: cannot be read"):
        operator_times.load(tmp_path / "absent.csv")


@pytest.mark.parametrize("text", [f"{'x' * 200_000},seconds\nmm,1\n", f"operator,seconds\n{'x' * 200_000},1\n"])
def test_a_cell_that_is_no_cell_is_named_with_its_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(TriosimError, match=r"t\.csv:[12]: is no table of comma-separated values"):
        applied(tmp_path, "t.csv", text)
