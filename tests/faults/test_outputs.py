"""What goes wrong while a file is written: a disk that fills, a process that is killed, two that write the same file."""

from __future__ import annotations

import json
import os
import random
import resource
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.faults.kills import COMMANDS, NEED_TORCH, faults_of_a_kill, prepare, seconds_of
from tests.fuzz.kinds import KINDS

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]

_ON_TRACE = "simulate trace.json -p ddp -n 2 -q"
#: Each output of the command line.
OUTPUTS = (
    f"{_ON_TRACE} -o out.json",
    f"{_ON_TRACE} -o out.json.gz --record",
    f"{_ON_TRACE} --csv out.csv",
    f"{_ON_TRACE} --parquet out.parquet",
    f"{_ON_TRACE} --timeline out.json",
    f"{_ON_TRACE} --kineto out",
    f"{_ON_TRACE} --chakra out",
    f"{_ON_TRACE} --plot out.png",
    f"{_ON_TRACE} --links --link-plot out.png",
    f"{_ON_TRACE} --report out.html",
    f"{_ON_TRACE} --save-config out.yaml",
    "compare trace.json -n 2 -q --plot out.png",
    "compare trace.json -n 2 -q --report out.html",
    "memory trace.json --plot out.png",
    "memory trace.json --snapshot out.pickle",
    "memory trace.json --report out.html",
    "topology dgx-h100 -o out.png",
    "schedule 1f1b --stages 4 -q -o out.csv",
    "schedule 1f1b --stages 4 -q --plot out.png",
    "describe gpt2 --layers 1 --seq 16 -q -o out.json",
    "convert trace.json out.json",
    "search gpt2 --layers 1 --gpu H100 --gpus 2 --global-batch-size 2 -q --vary tp=1,2 -o out.json",
    "search gpt2 --layers 1 --gpu H100 --gpus 2 --global-batch-size 2 -q --vary tp=1,2 --study out.db",
    "calibrate missing trace.json -p ddp -n 2 -o out.csv",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("faults")
    next(kind for kind in KINDS if kind.name == "trace").make(place)
    return place


def start(command: str, folder: Path, most_bytes: int | None = None, **options: object) -> subprocess.Popen[bytes]:
    def limited() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a job in the background ignores it
        if most_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))

    return subprocess.Popen(
        [sys.executable, "-m", "triosim", *shlex.split(command)],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=limited,
        env={**os.environ, "MPLCONFIGDIR": str(folder.parent)},
    )


@pytest.mark.parametrize("command", OUTPUTS)
def test_a_disk_that_fills_leaves_no_half_written_file(command: str, folder: Path) -> None:
    if "--parquet" in command:
        pytest.importorskip("pyarrow")
    before = {path.name for path in folder.iterdir()}
    running = start(command, folder, most_bytes=20)
    _, errors = running.communicate()
    lines = [line for line in errors.decode().splitlines() if line.startswith("triosim: ")]
    assert running.returncode == 2, errors
    assert len(lines) == 1
    assert "File too large" in lines[0] or "disk" in lines[0]
    new = {path.name for path in folder.iterdir()} - before
    written = {path for name in new for path in (folder / name).rglob("*")} if new else set()
    assert not [path for path in written if path.is_file()], written
    assert all((folder / name).is_dir() or name.startswith("out.db") for name in new), new
    for name in new:
        subprocess.run(["rm", "-r", name], cwd=folder, check=True)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_killed_process_leaves_whole_files_or_none(name: str, tmp_path: Path) -> None:
    if name in NEED_TORCH:
        pytest.importorskip("torch")
    prepare(tmp_path)
    seconds = seconds_of(COMMANDS[name], tmp_path)
    for number in range(3):
        assert not list(faults_of_a_kill(COMMANDS[name], tmp_path, seconds, random.Random(f"{name} {number}")))


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
