"""How the format of a trace is found: by content, built-in ones first, plug-ins after."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import triosim
from triosim.errors import OptionError, PluginError, TraceError
from triosim.trace import Operator, Tensor, Trace

TINY = Trace((Operator(1, "aten::relu", "forward", "relu", (Tensor(1, (2, 3)),), (), 1e-6),), 2)


class TextFormat:
    """A plug-in: one operator's seconds on the second line of a text."""

    NAME = "text"

    @staticmethod
    def recognises(path: Path) -> bool:
        return path.is_file() and path.read_bytes().startswith(b"seconds\n")

    @staticmethod
    def read(path: Path) -> Trace:
        seconds = float(path.read_text().split()[1])
        return Trace((Operator(1, "aten::relu", "forward", "relu", (), (), seconds),), 1, source=str(path))


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    path = tmp_path / "trace.txt"
    path.write_text("seconds\n0.25\n")
    return path


def test_a_loaded_plug_in_reads_its_format(text_file: Path) -> None:
    assert triosim.load_trace(text_file, format=TextFormat()).seconds == 0.25


def test_an_installed_plug_in_is_asked_after_the_built_in_formats(
    text_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = EntryPoint("text", f"{__name__}:TextFormat", "triosim.trace.formats")
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [entry] if group.endswith("formats") else [])
    assert triosim.load_trace(text_file).seconds == 0.25


def test_a_format_may_be_named(tmp_path: Path) -> None:
    triosim.save_trace(TINY, tmp_path / "trace.json")
    assert triosim.load_trace(tmp_path / "trace.json", format="json").operators == TINY.operators
    with pytest.raises(PluginError, match="did you mean 'json'"):
        triosim.load_trace(tmp_path / "trace.json", format="jsn")


def test_a_plug_in_that_gives_no_trace_is_named(text_file: Path) -> None:
    class Broken(TextFormat):
        NAME = "broken"

        @staticmethod
        def read(path: Path) -> Trace:
            return "no trace"  # type: ignore[return-value]

    with pytest.raises(PluginError, match="gave a str"):
        triosim.load_trace(text_file, format=Broken())


def test_what_is_no_format_is_refused(text_file: Path) -> None:
    with pytest.raises(OptionError, match="not a trace format"):
        triosim.load_trace(text_file, format=3)  # type: ignore[arg-type]


def test_a_path_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"nowhere\.json: there is no such file"):
        triosim.load_trace(tmp_path / "nowhere.json")


def test_a_directory_without_a_trace_says_what_would_be_one(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing")
    with pytest.raises(TraceError, match=r"holds no trace.*trace\.csv and tensor\.csv"):
        triosim.load_trace(tmp_path)


def test_reading_a_trace_scans_no_packages_and_imports_nothing_heavy(tmp_path: Path) -> None:
    triosim.save_trace(TINY, tmp_path / "trace.json")
    program = (
        "import sys, triosim; triosim.load_trace(sys.argv[1]);"
        "print([name for name in ('torch', 'pandas', 'numpy', 'pydantic', 'importlib.metadata') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "trace.json"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
