"""Traces and tables that come through a pipe, and results that go into one."""

from __future__ import annotations

import gzip
import json
import os
import random
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from triosim.errors import TraceError
from triosim.input_files.reading import read_bytes
from triosim.trace import formats

TRACE = Path(__file__).parents[2] / "examples" / "traces" / "resnet50_a100_fake.json.gz"


def triosim(*arguments: str, given: bytes = b"", cwd: Path | None = None) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, "-m", "triosim", *arguments], input=given, capture_output=True, cwd=cwd)


@pytest.mark.parametrize("name", ["-", "/dev/stdin"])
@pytest.mark.parametrize("compressed", [True, False])
def test_a_trace_comes_through_standard_input(name: str, compressed: bool) -> None:
    content = TRACE.read_bytes()
    done = triosim("show", name, given=content if compressed else gzip.decompress(content))
    assert done.returncode == 0
    assert b"resnet50" in done.stdout
    assert (b"standard input" if name == "-" else b"/dev/stdin") in done.stdout


def test_what_is_wrong_with_standard_input_is_said_of_it() -> None:
    done = triosim("simulate", "-", given=gzip.decompress(TRACE.read_bytes())[:5000])
    assert done.returncode == 2
    assert done.stderr.startswith(b"triosim: error: standard input: line ")
    assert b"truncated" in done.stderr


def test_a_fifo_is_read_once_and_simulated(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    writer = threading.Thread(target=fifo.write_bytes, args=(TRACE.read_bytes(),))
    writer.start()
    found = formats.read_trace(fifo)
    writer.join()
    assert found.model == "resnet50"


PRODUCTS = b"m,n,k,dtype,seconds\n" + b"".join(b"%d,64,64,float16,1e-6\n" % (64 << i) for i in range(4))
COLLECTIVES = b"collective,gpus,bytes,time_us\n" + b"".join(
    b"all_reduce,8,%d,%g\n" % (2**i, 20 + 2**i / 1e5) for i in range(10, 26)
)


@pytest.mark.parametrize(
    ("command", "content"),
    [
        ("calibrate evaluate FILE --gpu A100", PRODUCTS),
        ("calibrate compute FILE --gpu A100 -o out.npz", PRODUCTS),
        ("calibrate evaluate FILE -t dgx-h100", COLLECTIVES),
        ("calibrate network FILE -t dgx-h100 -o out.yaml", COLLECTIVES),
    ],
)
def test_a_table_is_read_from_a_file_that_can_be_read_once(command: str, content: bytes, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_bytes(content)
    threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(content,), daemon=True).start()
    found = {}
    for name in ("file", "pipe", "-"):
        done = triosim(*command.replace("FILE", name).split(), cwd=tmp_path, given=content if name == "-" else b"")
        assert done.returncode == 0, done.stderr
        found[name] = done.stdout
    assert found["pipe"].replace(b"pipe", b"file") == found["file"]


def test_two_pipes_of_similar_names_are_two(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for name, content in (("a/b", b"one"), ("a-b", b"two")):
        os.mkfifo(tmp_path / name)
        writer = threading.Thread(target=(tmp_path / name).write_bytes, args=(content,))
        writer.start()
        assert read_bytes(tmp_path / name) == content
        assert read_bytes(tmp_path / "." / name) == content  # which was read once
        writer.join()


def test_a_table_of_times_comes_through_a_pipe(tmp_path: Path) -> None:
    given = b"operator,seconds\nconvolution,0.001\n"
    done = triosim("simulate", str(TRACE), "--operator-times", "/dev/stdin", "-q", "-o", "-", given=given)
    assert done.returncode == 0, done.stderr
    plain = json.loads(triosim("simulate", str(TRACE), "-q", "-o", "-").stdout)
    assert json.loads(done.stdout)["step_time_s"] != plain["step_time_s"]


def test_standard_output_has_the_output_alone(tmp_path: Path) -> None:
    done = triosim("simulate", str(TRACE), "-o", "-")
    assert json.loads(done.stdout)["schema"] == "triosim-result/1"
    assert "step time" in done.stderr.decode()
    twice = triosim("simulate", str(TRACE), "-o", "-", "--report", "-")
    assert (twice.returncode, twice.stdout) == (2, b"")


def test_the_temporary_file_of_a_pipe_is_gone_afterwards(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    subprocess.run(
        [sys.executable, "-m", "triosim", "show", "-"], input=TRACE.read_bytes(), env=environment, check=True,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    assert list(tmp_path.iterdir()) == []


def test_standard_input_and_standard_output_are_two_files() -> None:
    done = triosim("simulate", "-", "-p", "ddp", "-n", "2", "-q", "-o", "-", given=TRACE.read_bytes())
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["global_batch_size"] == 256


@pytest.mark.parametrize(
    "command", ["memory FILE", "simulate FILE -q -o -", "compare FILE -n 2 -q --report -", "show FILE"]
)
def test_a_trace_of_standard_input_is_that_of_the_file(command: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    assert triosim("describe", "gpt2", "--layers", "1", "--seq", "16", "-q", "-o", str(path)).returncode == 0
    for name in (str(path), "-"):
        done = triosim(*command.replace("FILE", name).split(), given=path.read_bytes())
        assert done.returncode == 0, done.stderr
        assert done.stdout


def test_a_topology_and_a_configuration_come_through_standard_input(tmp_path: Path) -> None:
    given = b"topology: switch\ngpus: 4\nbandwidth: 10 GB/s\n"
    done = triosim("simulate", str(TRACE), "-p", "ddp", "-t", "-", "-q", "-o", "-", given=given)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["ranks"]) == 4
    options = triosim("simulate", str(TRACE), "-p", "ddp", "-n", "4", "-q", "--save-config", "-").stdout
    assert b"parallel: ddp" in options
    done = triosim("simulate", "--config", "-", given=options)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"ddp on 4" in done.stdout


def test_every_output_of_one_file_may_be_standard_output() -> None:
    for option, begins in (
        ("--csv", b"table,item"),
        ("--timeline", b"{"),
        ("--report", b"<!doctype"),
        ("--write", b"table"),
    ):
        done = triosim("simulate", str(TRACE), option, "csv=-" if option == "--write" else "-")
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(begins)
    assert triosim("schedule", "1f1b", "--stages", "2", "-o", "-").stdout.startswith(b"rank,slot,action")
    for option in ("--kineto", "--chakra"):
        done = triosim("simulate", str(TRACE), option, "-")
        assert (done.returncode, done.stdout) == (2, b"")
        assert b"is no name of a folder" in done.stderr


@pytest.mark.parametrize(
    "command", ["show", "topology", "simulate --config", "calibrate evaluate", "report -o out.html"]
)
def test_a_device_without_an_end_is_refused(command: str, tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    for device in ("/dev/zero", "/dev/urandom"):
        done = subprocess.run(
            [sys.executable, "-m", "triosim", *command.split(), device],
            env=environment,
            capture_output=True,
            timeout=60,
        )
        assert (done.returncode, list(tmp_path.iterdir())) == (2, [])
        assert f"{device}: is a device, not a file".encode() in done.stderr


def endless(path: Path, piece: bytes) -> None:
    """Write a piece into a pipe until nobody reads it."""
    with suppress(BrokenPipeError), path.open("wb") as file:
        while True:
            file.write(piece)


@pytest.mark.parametrize(
    ("piece", "says"),
    [
        (bytes(1 << 20), "bytes that repeat themselves are more than the limit of 32,000,000"),
        (b"[1,\n" * (1 << 18), "bytes that repeat themselves are more than the limit of 32,000,000"),
        (
            b"y" + random.Random(0).randbytes(1 << 20),
            "neither JSON nor compressed, are more than the limit of 64,000,000",
        ),
    ],
    ids=["zeros", "JSON", "random"],
)
def test_a_pipe_without_an_end_is_refused_early(piece: bytes, says: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    writer = threading.Thread(target=endless, args=(tmp_path / "fifo", piece))
    writer.start()
    with pytest.raises(TraceError, match=says):
        read_bytes(tmp_path / "fifo")
    writer.join()


def test_an_empty_device_is_read() -> None:
    assert read_bytes(Path(os.devnull)) == b""


def test_much_json_comes_through_a_pipe(tmp_path: Path) -> None:
    draw = random.Random(0)
    piece = b'{"ts": %d, "dur": %d, "name": "aten::mm"},\n'
    content = b"[" + b"".join(piece % (draw.randrange(10**12), draw.randrange(10**6)) for _ in range(1_700_000))
    assert len(content) > 90_000_000
    os.mkfifo(tmp_path / "fifo")
    writer = threading.Thread(target=(tmp_path / "fifo").write_bytes, args=(content,))
    writer.start()
    assert read_bytes(tmp_path / "fifo") == content
    writer.join()
