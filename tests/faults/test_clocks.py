"""A clock of the machine that is set while a command runs: nothing of triosim looks at it but to say what day it is.

A library in front of the system's returns another time of day at each call, a year to and fro; the monotonic clock goes on.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.faults.kills import COMMANDS, NEED_TORCH, prepare

pytestmark = pytest.mark.slow

_YEAR = 31_536_000
_LIBRARY = """\
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static time_t moved(time_t now) {
    static unsigned long calls;
    return now + (time_t)(__atomic_fetch_add(&calls, 1, __ATOMIC_RELAXED) % 3 - 1) * YEAR;
}
int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec = moved(now->tv_sec);
    return failed;
}
int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *into) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (into) *into = found.tv_sec;
    return found.tv_sec;
}
"""


@pytest.fixture(scope="module")
def jumping(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """The environment of a process whose clock jumps."""
    folder = tmp_path_factory.mktemp("clock")
    if sys.platform != "linux" or shutil.which("cc") is None:
        pytest.skip("no library can be put in front of the system's here")
    (folder / "clock.c").write_text(_LIBRARY.replace("YEAR", f"{_YEAR}L"))
    subprocess.run(["cc", "-shared", "-fPIC", "-o", "clock.so", "clock.c"], cwd=folder, check=True)
    return {**os.environ, "LD_PRELOAD": str(folder / "clock.so")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("faults")
    prepare(place)
    return place


def triosim(command: str, folder: Path, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "triosim", *shlex.split(command)], cwd=folder, env=environment, timeout=300,
        capture_output=True, text=True,
    )  # fmt: skip


def test_the_clock_of_such_a_process_jumps(jumping: Mapping[str, str]) -> None:
    program = "import time; found = [time.time() for _ in range(9)]; print(max(found) - min(found))"
    done = subprocess.run([sys.executable, "-c", program], env=jumping, capture_output=True, text=True, check=True)
    assert float(done.stdout) > _YEAR


def figures(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the figures of a file that do not say how long its making took."""
    content: dict[str, Any] = json.loads(path.read_text())
    if path.name == "out.json":
        yield from ((key, value) for key, value in content.items() if key not in ("simulator", "seconds", "inputs"))


@pytest.mark.parametrize("name", COMMANDS)
def test_what_a_command_writes_does_not_depend_on_the_clock(
    name: str, folder: Path, tmp_path: Path, jumping: Mapping[str, str]
) -> None:
    if name in NEED_TORCH:
        pytest.importorskip("torch")
    written = {}
    for number, environment in enumerate((os.environ, jumping)):
        place = tmp_path / str(number)
        shutil.copytree(folder, place)
        done = triosim(COMMANDS[name], place, environment)
        assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
        written[number] = {path.name: path for path in place.glob("out*")}
    assert written[0].keys() == written[1].keys()
    if "out.json" in written[0] and name != "search":
        assert dict(figures(written[0]["out.json"])) == dict(figures(written[1]["out.json"]))


_SEARCH = "search gpt2 --layers 1 --gpu H100 --gpus 8 --global-batch-size 64 -p ddp=8"


def test_a_budget_of_time_is_one_of_time_that_passes(tmp_path: Path, jumping: Mapping[str, str]) -> None:
    pytest.importorskip("optuna")
    began = time.monotonic()
    done = triosim(f'{_SEARCH} --vary "bucket_size=1 MB..99 MB" --sampler random --budget 2s', tmp_path, jumping)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    assert 2 < time.monotonic() - began < 60


def test_a_study_goes_on(tmp_path: Path, jumping: Mapping[str, str]) -> None:
    command = f"{_SEARCH} --vary micro_batch_size=1,2,4 --study study.db"
    found = [triosim(command, tmp_path, environment) for environment in (os.environ, jumping, jumping)]
    assert [one.returncode for one in found] == [0, 0, 0]
    first, *others = [one.stdout.partition("1. ")[2] for one in found]
    assert others == [first, first]
    shown = triosim("search --show study.db", tmp_path, jumping)
    assert (shown.returncode, shown.stderr) == (0, "")


def test_the_monitor_answers_and_counts_the_time_that_passes(folder: Path, jumping: Mapping[str, str]) -> None:
    pytest.importorskip("uvicorn")
    command = "simulate trace.json -p ddp=4 -n 4 -t 'ring(4, bandwidth=1 MB/s)' --iterations 100000 --no-fold --monitor"
    running = subprocess.Popen(
        [sys.executable, "-m", "triosim", *shlex.split(command)], cwd=folder, env=jumping, text=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert running.stderr is not None
    url, _, token = running.stderr.readline().split()[-1].partition("#")
    answers: list[dict[str, Any]] = []
    while len([one for one in answers if one["phase"] == "simulating"]) < 3:
        with urllib.request.urlopen(urllib.request.Request(f"{url}state", headers={"x-token": token})) as answer:
            answers.append(json.loads(answer.read()))
        time.sleep(0.1)
    running.send_signal(signal.SIGINT)
    errors = running.communicate(timeout=60)[1]
    assert "Traceback" not in errors
    passed = [one["wall_s"] for one in answers]
    assert passed == sorted(passed)
    assert passed[0] >= 0
    assert passed[-1] < _YEAR / 10
    assert all(0 <= row["since_s"] < _YEAR / 10 for one in answers for row in one.get("ranks", ()) if row["since_s"])
