"""Measured steps: tables are known by their header, a broken row is named, and errors are what they say."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from triosim.errors import OptionError, OutputError, TraceError
from validation import end_to_end
from validation.steps import formats, megatron, picture
from validation.steps.command import OutOfScope
from validation.steps.errors import Predicted, Refused, summaries
from validation.steps.rows import Prediction, Row, spaced
from validation.steps.sources import sources, worst

ROOT = Path(__file__).resolve().parents[2]
ONE_NODE = (
    "# GPUs,global batch,micro batch,hidden size,attention heads,# layers,sequence length,tensor parallelism,"
    "data parallelism,pipeline parallelism,iteration time (ms)"
)


@pytest.fixture
def table(tmp_path: Path):
    """A table with a header and lines."""

    def write(*lines: str, header: str = ONE_NODE, name: str = "t.csv") -> Path:
        path = tmp_path / name
        text = "\n".join((header, *lines)) + "\n"
        path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
        return path

    return write


def test_a_table_is_known_by_its_header(table):
    small = "2,2,1,256,4,2,128,2,1,1,10.0"
    assert formats.read(table(small))[0].name == "megatron-one-node"
    assert formats.read(table(small, name="t.csv.gz"))[0].name == "megatron-one-node"
    many = formats.read(table(f"0.1,{small}", header=f"Parameters (billion),{ONE_NODE}"))
    assert many[0].name == "megatron-nodes"
    assert many[1][0].measured == 10.0


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("2,2,1,256,4,2,128,2,1,1", "t.csv:2: 10 columns"),
        ("2,2,1,256,4,2,128,2,1,1,fast", "'iteration time (ms)' is 'fast'"),
        ("2,2,1,256,4,2,128,2,1,1,-4", "'iteration time (ms)' is '-4'"),
        ("2,2.5,1,256,4,2,128,2,1,1,10", "'global batch' is '2.5'"),
        ("4,2,1,256,4,2,128,2,1,1,10", "4 GPUs"),
        ("2,3,2,256,4,2,128,2,1,1,10", "a batch of 3"),
        ("2,2,1,256,3,2,128,2,1,1,10", "3 heads"),
        (",2,1,256,4,2,128,2,1,1,10", "no '# GPUs'"),
    ],
)
def test_a_broken_row_is_named(table, line, said, capsys):
    assert end_to_end.main(["--table", str(table(line))]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_an_unknown_header_and_an_unreadable_file_are_named(table, tmp_path, capsys):
    assert end_to_end.main(["--table", str(table("1,2", header="speed,colour"))]) == 2
    assert "header 'speed,colour'" in capsys.readouterr().err
    assert end_to_end.main(["--table", str(tmp_path / "none.csv")]) == 2
    assert "none.csv" in capsys.readouterr().err
    assert end_to_end.main(["--table", str(table())]) == 2
    assert "no rows" in capsys.readouterr().err


def test_a_table_of_another_format_than_asked_for_is_refused(table, capsys):
    given = str(table("2,2,1,256,4,2,128,2,1,1,10.0"))
    assert end_to_end.main(["--table", given, "--only", "torchtitan"]) == 2
    assert "the format is megatron-one-node" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["no-folder/a.png", "a.bmp"])
def test_a_picture_that_cannot_be_written_is_named_before_a_row_is_predicted(table, tmp_path, name, capsys):
    given = str(table("2,2,1,256,4,2,128,2,1,1,10.0"))
    assert end_to_end.main(["--table", given, "--plot", str(tmp_path / name)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert name.rpartition("/")[2] in said.err


def test_it_runs_as_a_script_and_prints_json(table):
    path = table("2,2,1,256,4,2,128,2,1,1,10.0", "1,2,1,256,4,2,128,1,1,1,10.0")
    ran = subprocess.run(
        [sys.executable, "validation/end_to_end.py", "--table", str(path), "--format", "json"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    found = json.loads(ran.stdout)
    assert [one["measured"] for one in found["rows"]] == [10.0, 10.0]
    assert all(one["predicted"] > 0 for one in found["rows"])
    assert found["summaries"][0]["rows"] == 2


def test_the_figures_of_a_table_are_those_of_its_errors():
    rows = [Row("a", "m", measured, "ms", None) for measured in (100.0, 100.0, 100.0)]
    found = [
        Predicted("megatron-one-node", "t", row, value) for row, value in zip(rows, (110.0, 70.0, 102.0), strict=True)
    ]
    (one,) = summaries(found)
    assert (one.mean, one.median, one.worst, one.bias) == pytest.approx((0.14, 0.10, -0.30, -0.06))


def test_a_sample_is_evenly_spaced():
    assert spaced(list(range(10)), 5) == [0, 2, 4, 6, 8]
    assert spaced([1, 2], 5) == [1, 2]


def test_megatron_divides_the_words_that_its_ranks_share(table):
    """Of GPT-2's 50,257 words, two ranks divide 50,256; nodes of eight have a topology, one node is the GPU's own."""
    (row,) = formats.read(table("2,2,1,256,4,2,128,2,1,1,10"))[1]
    assert "vocab=50256" in str(row.case)
    assert "--topology" not in str(row.case)
    wide = formats.read(table("0.1,16,16,1,256,4,2,128,1,16,1,10", header=f"Parameters (billion),{ONE_NODE}"))[1][0]
    assert "--topology 'dgx-a100(gpus=16, inter_node={bandwidth: 200 Gb/s, gpus_per_nic: 2})'" in str(wide.case)


def test_a_missing_column_is_named(table):
    with pytest.raises(TraceError, match="iteration time"):
        formats.read(table("1", header=ONE_NODE.rpartition(",")[0]))


def test_selective_recomputation_and_sequence_parallelism_are_read(table):
    header = (
        "model,layers,hidden,heads,sequence_length,vocab,gpus,tp,pp,interleave,dp,global_batch,micro_batch,recompute,"
        "sequence_parallel,iteration_time_s,source"
    )
    line = "tiny,4,256,4,128,512,4,2,2,2,1,4,1,{},{},1.5,nobody"
    kind, rows = formats.read(table(line.format("full", "no"), line.format("selective", "yes"), header=header))
    assert kind.name == "megatron-selective"
    full, selective = (kind.predicted(row).value for row in rows)
    assert 0 < selective < full
    with pytest.raises(TraceError, match="known: none, selective, full"):
        formats.read(table(line.format("some", "no"), header=header))


def test_all_times_are_in_one_panel_of_the_picture(table, tmp_path):
    pytest.importorskip("matplotlib")
    kind, rows = formats.read(table("2,2,1,256,4,2,128,2,1,1,10.0"))
    found = [Predicted(kind.name, "t", rows[0], 11.0), Predicted(kind.name, "u", Row("a", "m", 1.0, "s", None), 1.1)]
    picture.scatter(found, str(tmp_path / "a.png"))
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(OutputError, match="cannot be written"):
        picture.scatter(found, str(tmp_path / "none" / "a.png"))


def test_broken_rows_and_rows_that_cannot_be_simulated_are_said_and_the_others_predicted(table, capsys, monkeypatch):
    """Of four lines one has no number and one is refused by the simulator."""
    predict = megatron.OneNode.predicted

    def picky(self, row):
        if "L=4" in row.label:
            raise OptionError("four layers", fix="give two")
        return predict(self, row)

    monkeypatch.setattr(megatron.OneNode, "predicted", picky)
    good, wrong, deep = "1,2,1,256,4,2,128,1,1,1,10", "1,2,1,256,4,2,128,1,1,1,fast", "1,2,1,256,4,4,128,1,1,1,10"
    assert end_to_end.main(["--table", str(table(good, wrong, deep, good))]) == 0
    said = capsys.readouterr()
    assert said.err.splitlines()[0].startswith(f"{table(good, wrong, deep, good)}:3: 'iteration time (ms)' is 'fast'")
    assert "four layers; give two" in said.err.splitlines()[1]
    assert "t: 2 refused" in said.out
    assert "2 rows, MAPE" in said.out
    assert end_to_end.main(["--table", str(table(good, deep)), "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (len(found["rows"]), len(found["refused"])) == (1, 1)
    assert end_to_end.main(["--table", str(table(deep))]) == 2


def test_what_was_printed_is_not_simulated_again(table, tmp_path, capsys, monkeypatch):
    path = str(table("1,2,1,256,4,2,128,1,1,1,10"))
    assert end_to_end.main(["--table", path, "--format", "csv"]) == 0
    first = capsys.readouterr().out
    (tmp_path / "before.csv").write_text(first)
    monkeypatch.setattr(megatron.OneNode, "predicted", lambda *_: pytest.fail("simulated"))
    assert end_to_end.main(["--table", path, "--format", "csv", "--reuse", str(tmp_path / "before.csv")]) == 0
    assert capsys.readouterr().out == first
    assert end_to_end.main(["--table", path, "--reuse", path]) == 2
    assert "not what --format csv prints" in capsys.readouterr().err


def test_a_mistake_of_the_simulator_in_one_row_ends_no_table(table, capsys, monkeypatch):
    def broken(self, row):
        raise ZeroDivisionError("nobody")

    monkeypatch.setattr(megatron.OneNode, "predicted", broken)
    assert end_to_end.main(["--table", str(table("1,2,1,256,4,2,128,1,1,1,10"))]) == 2
    assert "ZeroDivisionError: nobody" in capsys.readouterr().err


def test_a_source_counts_each_refused_row_of_its_table_as_all_wrong():
    """Two of nine readable rows, off by 10 and 20%, and one refused of ten: (9 * 15% + 100%) / 10."""
    kind = megatron.OneNode.name
    found = [Predicted(kind, "t", Row("a", "m", 1.0, "s", None), value, 0.9, 1.5) for value in (1.1, 1.2)]
    refused = [Refused("t", OptionError("no")), Refused("t", OutOfScope("LoRA")), Refused("u", OptionError("no"))]
    (one,) = sources(found, Counter(t=9), refused)
    assert one.error == pytest.approx(0.235)
    assert one.cells == ("t", "2 of 9", "1", "23.5%", "5%", "+15.0%", "100%", "26%")
    assert not one.holds
    assert [row.value for row in worst(found, 1)] == [1.2]


def test_a_part_of_a_table_of_which_something_else_is_asked_is_a_source(monkeypatch):
    """Of one part's three rows, one is read and off by 10%, and one of its own is refused; the other's is off by 20%."""
    monkeypatch.setattr(megatron.OneNode, "asked", {"old": 0.6, "new": 0.1})
    kind = megatron.OneNode.name
    found = [
        Predicted(kind, "t", Row("a", "m", 1.0, "s", None, part=part), value)
        for part, value in (("old", 1.1), ("new", 1.2))
    ]
    refused = [Refused("t", OptionError("no"), part="old")]
    old, new = sources(found, Counter({"t, old": 1, "t, new": 3}), refused)
    assert old.cells[:6] == ("t, old", "1", "1", "55.0%", "60%", "+10.0%")
    assert new.cells[:6] == ("t, new", "1 of 3", "", "20.0%", "10%", "+20.0%")
    assert (old.holds, new.holds) == (True, False)


def test_each_part_of_a_table_has_a_sample(monkeypatch):
    monkeypatch.setattr(megatron.OneNode, "sample", 2)
    monkeypatch.setattr(megatron.OneNode, "is_quick", lambda *_: True)
    rows = [Row("a", "m", 1.0, "s", None, part="old" if line < 2 else "new", line=line) for line in range(8)]
    assert [row.line for row in megatron.OneNode().sampled(rows)] == [0, 1, 2, 5]


def test_the_sample_of_a_table_is_quick_and_evenly_spaced(monkeypatch):
    kind = megatron.OneNode()
    monkeypatch.setattr(megatron.OneNode, "sample", 3)
    monkeypatch.setattr(megatron.OneNode, "is_quick", lambda self, row: row.line % 2 == 0)
    rows = [Row("a", "m", 1.0, "s", None, line=line) for line in range(12)]
    assert [row.line for row in kind.sampled(rows)] == [0, 4, 8]


def test_rows_of_one_command_are_predicted_once(table, monkeypatch):
    """Two measurements of one step, and another one: three rows, each with its own error, of two predictions."""
    lines = [f"2,2,1,256,4,{layers},128,2,1,1,{time}" for layers, time in ((2, 10), (4, 20), (2, 40))]
    kind, rows = formats.read(table(*lines))
    ran = []

    def of_layers(self, row):
        ran.append(row.line)
        return Prediction(float(row.label.split("L=")[1].split()[0]))

    monkeypatch.setattr(type(kind), "predicted", of_layers)
    found = list(end_to_end.predicted([(kind, "t", rows)]))
    assert ran == [2, 3]
    assert [(one.value, one.row.measured) for one in found] == [(2.0, 10.0), (4.0, 20.0), (2.0, 40.0)]
