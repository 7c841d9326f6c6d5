"""What goes wrong while a file is written: a process that is killed, two that write the same file, no home and no folder."""

from __future__ import annotations

import json
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.faults.kills import (
    COMMANDS,
    NEED_TORCH,
    WITH_WORKERS,
    faults_of_a_kill,
    faults_of_a_killed_worker,
    prepare,
    seconds_of,
)
from tests.fuzz.kinds import KINDS

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]

_ON_TRACE = "simulate trace.json -p ddp -n 2 -q"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("faults")
    next(kind for kind in KINDS if kind.name == "trace").make(place)
    return place


def start(command: str, folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "triosim", *shlex.split(command)],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL) and None,  # a job in the background ignores it
        env={**os.environ, "MPLCONFIGDIR": str(folder.parent)},
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_a_killed_process_leaves_whole_files_or_none(name: str, tmp_path: Path) -> None:
    if name in NEED_TORCH:
        pytest.importorskip("torch")
    prepare(tmp_path)
    seconds = seconds_of(COMMANDS[name], tmp_path)
    for number in range(3):
        assert not list(faults_of_a_kill(COMMANDS[name], tmp_path, seconds, random.Random(f"{name} {number}")))


@pytest.mark.parametrize("name", WITH_WORKERS)
def test_a_worker_that_is_killed_ends_its_command_in_one_line(name: str, tmp_path: Path) -> None:
    if name in NEED_TORCH:
        pytest.importorskip("torch")
    prepare(tmp_path)
    command = WITH_WORKERS[name]
    seconds = seconds_of(command, tmp_path)
    for number in range(2):
        assert not list(faults_of_a_killed_worker(command, tmp_path, seconds, random.Random(f"{name} {number}")))


@pytest.mark.parametrize(
    "command", ["simulate trace.json -q", "search gpt2 --gpu H100 --gpus 2 --global-batch-size 2", "gpus"]
)
def test_ctrl_c_at_the_start_shows_no_frame_of_ours(command: str, folder: Path) -> None:
    for tenths in range(10):  # Python itself starts in the first
        running = start(command, folder)
        time.sleep(tenths * 0.01)
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate()
        assert f"{ROOT / 'triosim'}".encode() not in errors


def test_two_processes_may_write_one_file(folder: Path) -> None:
    running = [start(f"{_ON_TRACE} -b {size} -o out.json", folder) for size in (1, 2, 3, 4)]
    assert [one.wait() for one in running] == [0, 0, 0, 0]
    assert json.loads((folder / "out.json").read_text())["global_batch_size"] in (2, 4, 6, 8)
    (folder / "out.json").unlink()


def test_no_home_and_no_temporary_folder_are_needed(folder: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "TMPDIR": "/nonexistent"}
    done = subprocess.run(
        [sys.executable, "-m", "triosim", *_ON_TRACE.split(), "-o", "out.json"],
        cwd=folder, env=environment, capture_output=True,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    (folder / "out.json").unlink()
