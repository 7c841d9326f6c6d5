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
