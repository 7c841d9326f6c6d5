"""Kills commands at random moments, and looks at what they left: whole files or none, no process, nothing in the way."""

from __future__ import annotations

import gzip
import json
import os
import random
import shlex
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

SCRIPT = """\
import torch
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(20):
    model(torch.randn(8, 64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.save(model.state_dict(), "weights.pt")
"""
#: Every rank has a process of its own.
DISTRIBUTED = """\
import torch
import torch.distributed as dist
dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(40):
    model(torch.randn(8 + rank, 64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.save(model.state_dict(), "weights.pt")
"""
_SEARCH = "search gpt2 --layers 1 --gpu H100 --gpus 4 --global-batch-size 4 --vary tp=1,2 --vary micro_batch_size=1,2"
#: The command to kill, by name; ``S`` is a script that needs PyTorch.
COMMANDS = {
    "simulate": "simulate trace.json -p ddp -n 2 -q -o out.json --record --report out.html --timeline out2.json",
    "search": f"{_SEARCH} --study out.db -o out.json",
    "run": "run --world 2 --gpu H100 -o out.json train.py",
    "capture": "capture --fake --world 2 -q -o out.json train.py",
    "convert": "convert large.json out.json.gz",
    "report": "report result.json -o out.html",
}
#: Commands that work in several processes, of which one is killed.
WITH_WORKERS = {
    "search": "search gpt2 --gpu H100 --gpus 32 --global-batch-size 64 --jobs 3 --study out.db -o out.json",
    "run": "run --world 2 --ranks all --gpu H100 -o out.json distributed.py",
    "capture": "capture --fake --world 2 -q -o out.json distributed.py",
}
NEED_TORCH = ("run", "capture")
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
#: What is in a traceback of ours, and not in one of Python's start.
OURS = f"{Path(__file__).parents[2] / 'triosim'}{os.sep}".encode()
#: What ``run`` keeps of a script, and says so, and what PyTorch keeps for the next time.
KEPT = ("triosim-files-", "torchinductor")
#: Seconds in which whatever a killed process started must be gone.
PATIENCE = 10.0


def prepare(folder: Path) -> None:
    """Write what the commands read."""
    (folder / "train.py").write_text(SCRIPT)
    (folder / "distributed.py").write_text(DISTRIBUTED)
    for command in (
        "describe gpt2 --layers 2 --seq 64 -q -o trace.json",
        "describe llama3-8b --seq 64 -q -o large.json",
        "simulate trace.json -p ddp -n 2 -q -o result.json --record",
    ):
        subprocess.run([sys.executable, "-m", "triosim", *command.split()], cwd=folder, check=True)


def start(command: str, folder: Path) -> subprocess.Popen[bytes]:
    """Start a command in a session of its own."""
    place = folder / "tmp"
    place.mkdir(exist_ok=True)
    return subprocess.Popen(
        [sys.executable, "-m", "triosim", *shlex.split(command)], cwd=folder, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env={**os.environ, "TMPDIR": str(place)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL) and None,  # a job in the background ignores it
    )  # fmt: skip


def seconds_of(command: str, folder: Path) -> float:
    """Return how long a command takes; it must work."""
    began = time.monotonic()
    running = start(command, folder)
    _, errors = running.communicate()
    assert running.returncode == 0, errors
    remove_outputs(folder)
    return time.monotonic() - began


def faults_of_a_kill(command: str, folder: Path, seconds: float, draw: random.Random) -> Iterator[str]:
    """Kill a command at a moment of the ``seconds`` that it takes; yield what is wrong with what it left."""
    sent = draw.choice(SIGNALS)
    running = start(command, folder)
    time.sleep(draw.uniform(0.0, seconds))
    if sent == signal.SIGINT and draw.random() < 0.5:
        os.killpg(running.pid, sent)  # as a terminal does, which tells all processes of the command
    else:
        running.send_signal(sent)
    _, errors = running.communicate()
    yield from _left_by(running, errors, command, folder, sent)


def faults_of_a_killed_worker(command: str, folder: Path, seconds: float, draw: random.Random) -> Iterator[str]:
    """Kill a process that a command, which takes so many ``seconds``, has started; yield what is wrong with its end."""
    running = start(command, folder)
    while running.poll() is None and not _workers(running):
        time.sleep(0.02)
    time.sleep(draw.uniform(0.0, 0.3) * seconds)
    if workers := _workers(running):
        with suppress(ProcessLookupError):
            os.kill(draw.choice(workers), signal.SIGKILL)
    _, errors = running.communicate()
    lines = [line for line in errors.decode().splitlines() if line.startswith("triosim: error: ")]
    if running.returncode and (running.returncode < 0 or len(lines) != 1):
        yield f"status {running.returncode}, {len(lines)} lines of error: {errors.decode()[-600:]}"
    yield from _left_by(running, errors, command, folder, signal.SIGKILL)


def _workers(running: subprocess.Popen[bytes]) -> list[int]:
    return [number for number, _ in _of_session(running.pid) if number != running.pid]


def _left_by(
    running: subprocess.Popen[bytes], errors: bytes, command: str, folder: Path, sent: signal.Signals
) -> Iterator[str]:
    """Yield what is wrong with what a command left that was killed, or whose worker was; run it again, and clean up."""
    if b"internal error" in errors or (b"Traceback" in errors and OURS in errors):
        yield f"{sent.name}: {errors.decode()[-600:]}"
    if left := _still_running(running.pid):
        yield f"{sent.name}: {len(left)} processes were left: {left}"
    yield from _broken(folder)
    if (folder / "weights.pt").exists():
        yield "a file of the script is in its folder"
    left_over = [path for path in (folder / "tmp").iterdir() if not path.name.startswith(KEPT)]
    if sent != signal.SIGKILL and running.returncode != -sent and left_over:
        yield f"{sent.name}: temporary files were left: {left_over}"
    again = start(command, folder)
    _, errors = again.communicate()
    if again.returncode:
        yield f"{sent.name}: the next run failed: {errors.decode()[-300:]}"
    if parts := [path.name for path in folder.glob(".*.part")]:
        yield f"{sent.name}: the next run left {parts}"
    yield from _broken(folder)
    remove_outputs(folder)


def remove_outputs(folder: Path) -> None:
    """Remove what commands wrote."""
    for path in (*folder.glob("out*"), *folder.glob(".out*")):
        path.unlink()
    subprocess.run(["rm", "-rf", str(folder / "tmp")], check=True)


def _still_running(session: int) -> list[str]:
    """Return the command lines of the processes of a session that do not end soon; end them."""
    end = time.monotonic() + PATIENCE
    while found := list(_of_session(session)):
        if time.monotonic() > end:
            for number, _ in found:
                with suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)
            return [words for _, words in found]
        time.sleep(0.1)
    return []


def _of_session(session: int) -> Iterator[tuple[int, str]]:
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError):
            state, _, _, number = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(number) == session and state != "Z":
                words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                yield int(folder.name), f"{folder.name} {words:.100}"


def _broken(folder: Path) -> Iterator[str]:
    for path in folder.glob("out*"):
        try:
            if path.suffix in (".json", ".gz"):
                json.loads(gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes())
            elif path.suffix == ".html":
                assert path.read_text().rstrip().endswith("</html>")
            elif path.suffix == ".db":
                with closing(sqlite3.connect(path)) as study:
                    assert study.execute("pragma integrity_check").fetchall() == [("ok",)]
        except (AssertionError, EOFError, OSError, ValueError, sqlite3.Error) as error:
            yield f"{path.name} is broken: {error!r}"
