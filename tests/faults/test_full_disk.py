"""A disk that fills while an output is written: one line, no half file, and the next run works.

The system ends a write beyond the largest size of a file, at several places of each output; where a test may mount one, a
small file system is full too.
"""

from __future__ import annotations

import os
import resource
import shlex
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import typer

from tests.fuzz.kinds import KINDS
from triosim import cli
from triosim.cli.main import app

pytestmark = pytest.mark.slow

_RUN = "simulate trace.json -p ddp -n 2 -q"
_SEARCH = "search gpt2 --layers 1 --gpu H100 --gpus 2 --global-batch-size 2 -q --vary tp=1,2"
#: Each output of the command line, by the command and the option that name it.
OUTPUTS = (
    f"{_RUN} --output out.json",
    f"{_RUN} --output out.json.gz --record",
    f"{_RUN} --csv out.csv",
    f"{_RUN} --parquet out.parquet",
    f"{_RUN} --arrow out.arrow",
    f"{_RUN} --timeline out.json",
    f"{_RUN} --kineto out",
    f"{_RUN} --chakra out",
    f"{_RUN} --plot out.png",
    f"{_RUN} --links --link-plot out.png",
    f"{_RUN} --report out.html",
    f"{_RUN} --write csv=out.csv",
    f"{_RUN} --save-config out.yaml",
    "simulate config.json --gpu H100 -p fsdp -n 2 -q --export out --for torchtitan --for deepspeed",
    "compare trace.json -n 2 -q --plot out.png",
    "compare trace.json -n 2 -q --report out.html",
    "compare trace.json -n 2 -q --save-config out.yaml",
    "compare trace.json -n 2 -q --write comparison-page=out.html",
    "memory trace.json -q --plot out.png",
    "memory trace.json -q --snapshot out.pickle",
    "memory trace.json -q --report out.html",
    "memory trace.json -q --save-config out.yaml",
    "topology dgx-h100 --output out.png",
    "schedule 1f1b --stages 4 -q --output out.csv",
    "schedule 1f1b --stages 4 -q --plot out.png",
    "describe gpt2 --layers 1 --seq 16 -q --output out.json",
    "convert trace.json out.json",
    "convert trace.json out.json.gz",
    "report result.json --output out.html",
    f"{_SEARCH} --output out.json",
    f"{_SEARCH} --study out.db",
    f"{_SEARCH} --plot out.png",
    f"{_SEARCH} --report out.html",
    "search config.json --gpu H100 --gpus 2 --global-batch-size 2 -q --vary tp=1,2 --export out --for torchtitan",
    "advise config.json --gpu H100 --like job.json -n 2 -q --output out.json",
    "calibrate missing trace.json -q -p ddp -n 2 --output out.csv",
    "calibrate missing trace.json -q -p ddp -n 2 --save-config out.yaml",
    "calibrate compute table.csv --gpu A100 --output out.npz",
    "calibrate network table.txt -t dgx-h100 --collective all_reduce --output out.yaml",
)
#: Those that need PyTorch, or a GPU: they are written by the same functions as the others.
NEED_TORCH = {
    *("run --output", "run --report", "run --ranks-output", "run --files", "capture --output"),
    *("calibrate measure --output", "calibrate launches --output", "calibrate collectives --output"),
}
#: Options that name what is read.
INPUTS = ("operator_times", "models", "system", "memory", "groups", "config", "like", "space", "script", "show", "plan")
#: How many places of an output are tried.
PLACES = 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("faults")
    for name in ("result", "model", "nccl-tests", "products"):
        next(kind for kind in KINDS if kind.name == name).make(place)
    zero = '{"stage": 2, "overlap_comm": true}'
    (place / "job.json").write_text(f'{{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {zero}}}')
    return place


def _written(folder: Path, before: set[Path]) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()} - before


def _ended(words: list[str], folder: Path, most_bytes: int | None) -> tuple[int, str]:
    """Run a command line in a fork in which no file may grow beyond some bytes; return its status and error output."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            os.chdir(folder)
            os.dup2(writing, 2)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
            if most_bytes is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
            status = cli.run(words)
            sys.stderr.flush()
        finally:
            os._exit(status)
    os.close(writing)
    with open(reading, "rb") as errors:
        said = errors.read().decode()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said


def _remove(folder: Path) -> None:
    for path in sorted([*folder.glob("out*"), *folder.glob("out*/*")], reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()


def _is_whole(study: Path) -> bool:
    with closing(sqlite3.connect(study)) as opened:
        return opened.execute("pragma integrity_check").fetchall() == [("ok",)]


def check(words: list[str], folder: Path, most_bytes: int | None, reasons: tuple[str, ...]) -> None:
    """Run a command line that cannot write all of its output: a study keeps what was written, and nothing else is left."""
    before = _written(folder, set())
    status, said = _ended(words, folder, most_bytes)
    assert status == 2, (most_bytes, said)
    (line,) = [line for line in said.splitlines() if line.startswith("triosim: error: ")]
    assert any(reason in line for reason in reasons)
    left = _written(folder, before)
    assert all(path.name.startswith("out.db") for path in left), (most_bytes, left)
    assert all(_is_whole(path) for path in left if path.name == "out.db")
    if left:
        assert _ended(words, folder, None)[0] == 0
    _remove(folder)


@pytest.mark.parametrize("command", OUTPUTS)
def test_a_disk_that_fills_leaves_no_half_written_file(
    command: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "--parquet" in command or "--arrow" in command:
        pytest.importorskip("pyarrow")
    words = shlex.split(command)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("MPLCONFIGDIR", str(folder.parent))
    before = _written(folder, set())
    with redirect_stdout(StringIO()):
        assert cli.run(words) == 0  # in this process, so that a fork has imported all that it needs
    largest = max(path.stat().st_size for path in _written(folder, before))
    _remove(folder)
    for most in sorted(
        {*(largest * place // PLACES for place in range(PLACES)), largest * 15 // 16}
    ):  # times are in it
        check(words, folder, most, ("File too large", "disk"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of two pages."""
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8k", "none", str(tmp_path)], capture_output=True)
    if mounted.returncode:
        pytest.skip("no file system may be mounted here")
    yield tmp_path
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def test_a_small_file_system_that_is_full_is_one_line(
    small_disk: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    tried = 0
    for command in OUTPUTS:
        if "--parquet" in command or "--arrow" in command:
            continue
        (small_disk / "filled").write_bytes(bytes(8000))
        words = shlex.split(command)
        words = [
            word.replace("out", f"{small_disk}/out") if word.rpartition("=")[2].startswith("out") else word
            for word in words
        ]
        status, said = _ended(words, folder, None)
        assert status == 2, (command, said)
        assert "No space left on device" in said or "disk" in said, (command, said)
        assert [path.name for path in _written(small_disk, set()) if not path.name.startswith("out.db")] == ["filled"]
        for path in small_disk.iterdir():
            path.unlink() if path.is_file() else path.rmdir()
        tried += 1
    assert tried > 30


@pytest.mark.parametrize("command", [_RUN.removesuffix(" -q"), f"{_RUN} -o -", "show trace.json", "gpus", "plugins"])
def test_a_full_disk_behind_standard_output_is_one_line(command: str, folder: Path) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "triosim", *shlex.split(command)], cwd=folder, stdout=full, stderr=subprocess.PIPE
        )
    assert done.returncode == 2
    assert done.stderr.decode().splitlines()[-1].startswith("triosim: error: standard output: could not be written")


def _commands(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    for name in group.lazy:
        command = group.loaded(name)
        yield from _commands(command, f"{name} ") if hasattr(command, "lazy") else [(f"{before}{name}", command)]


def test_every_output_is_tried() -> None:
    tried = {
        f"{words[0] if words[0] != 'calibrate' else ' '.join(words[:2])} {words[at]}"
        for words in map(shlex.split, OUTPUTS)
        for at in range(len(words) - 1)
        if words[at + 1].rpartition("=")[2].startswith("out")
    }
    outputs = {
        f"{name} {option.opts[0]}"
        for name, command in _commands(typer.main.get_command(app))
        for option in command.params
        if option.param_type_name == "option" and option.name not in INPUTS
        and any(word in str(option.metavar) for word in ("FILE", "DIR"))
    }  # fmt: skip
    assert outputs - tried == NEED_TORCH
