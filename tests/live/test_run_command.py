"""``triosim run``: a script runs to its end on a simulated clock, and its own log is the prediction."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from triosim.cli import run

torch = pytest.importorskip("torch")

TRAINING = """
import time, torch
from torch import nn
model = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(4)]).cuda()
optimizer = torch.optim.AdamW(model.parameters())
before = time.perf_counter()
for step in range(6):
    model(torch.randn(4096, 2048, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.cuda.synchronize()
    now = time.perf_counter()
    print(f"step {step}: {now - before:.9f}")
    before = now
"""

CLOCKS = """
import datetime, logging, pickle, sys, threading, time, timeit
from datetime import datetime as bound
from time import perf_counter, sleep
began = time.time()
print("began", began, time.strftime("%Y-%m-%d", time.gmtime()), time.monotonic_ns())
print("kinds", isinstance(bound.now(), datetime.datetime), pickle.loads(pickle.dumps(bound.now())) <= bound.now())
print("shown", repr(bound.now()).startswith("datetime.datetime(2027, 5, 6"), type(time.perf_counter()))
print("real ones", isinstance(datetime.datetime(2020, 1, 1), bound), issubclass(bound, datetime.date))
sleep(3600)
print("slept", round(time.time() - began, 3), round(perf_counter(), 3), bound.now(datetime.timezone.utc).isoformat()[:16])
print("timeit", timeit.timeit(lambda: time.sleep(0.25), number=4) - 1 < 1e-3)
logging.basicConfig(stream=sys.stdout, format="%(created).0f")
logging.warning("logged")
thread = threading.Thread(target=lambda: time.sleep(0.01))
thread.start()
thread.join()
while time.monotonic() < 3601.0001:  # ends, because reading a clock takes time
    pass
"""

EVENTS = """
import torch
a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
weight = torch.randn(8192, 8192, device="cuda")
torch.cuda.synchronize()
a.record()
weight @ weight
b.record()
print("done before", b.query())
try:
    a.elapsed_time(b)
except RuntimeError as error:
    print("error", error)
torch.cuda.synchronize()
print("done after", b.query())
print("one product", a.elapsed_time(b) > 10)  # 1.1 TFLOP in float32 at 67 TFLOP/s takes more than 16 ms
"""

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.chdir(tmp_path)

    def live(script: str, *options: str) -> tuple[int, str, str]:
        (tmp_path / "train.py").write_text(script, encoding="utf-8")
        status = run(["run", "--gpu", "H100", *options, "train.py"])
        shown = capsys.readouterr()
        return status, shown.out, shown.err

    return live


def seconds_of(log: str) -> list[float]:
    return [float(one) for one in re.findall(r"^step \d+: (\S+)$", log, re.MULTILINE)]


def test_the_scripts_own_log_is_the_prediction(live: Run, tmp_path: Path) -> None:
    status, log, said = live(TRAINING, "-o", "result.json")
    assert status == 0
    result = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    own, ours = seconds_of(log)[1:], [one["seconds"] for one in result["steps"]][1:]
    assert len(own) == 5
    assert own == pytest.approx(ours, rel=0.01)
    assert own == pytest.approx([result["step_time_s"]] * 5, rel=1e-3)
    assert result["steps"][1]["began_s"] == pytest.approx(result["steps"][0]["seconds"])
    assert "contents of tensors, such as losses, were not computed" in said


#: The host waits within the step, for a value and for the loader.
WAITING = """
import time, torch
model = torch.nn.Linear(2048, 2048).cuda()
optimizer = torch.optim.SGD(model.parameters())
data = torch.utils.data.TensorDataset(torch.zeros(5 * 64, 2048))
before = time.perf_counter()
for step, (batch,) in enumerate(torch.utils.data.DataLoader(data, batch_size=64)):
    loss = model(batch.cuda()).square().mean()
    loss.backward()
    optimizer.step()
    loss.item()
    time.sleep(1e-3)
    now = time.perf_counter()
    print(f"step {step}: {now - before:.9f}")
    before = now
"""


def test_the_tables_show_a_step_as_it_ran(live: Run, tmp_path: Path) -> None:
    """Also where the host sleeps and waits: 2 ms for a batch, 1 ms by itself."""
    _, log, _ = live(WAITING, "--loader-time", "2 ms", "-o", "result.json")
    result = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    own = seconds_of(log)[2]
    assert own > 3e-3
    assert result["steps"][2]["seconds"] == pytest.approx(own, rel=1e-3)
    assert result["step_time_s"] == pytest.approx(own, rel=1e-3)
    assert result["ranks"][0]["idle_s"] > 3e-3


def test_a_run_that_is_repeated_prints_the_same_to_the_last_digit(live: Run) -> None:
    assert live(TRAINING, "-q") == live(TRAINING, "-q")


def test_a_script_ends_after_as_many_steps_as_are_asked_for(live: Run, tmp_path: Path) -> None:
    _, log, _ = live(TRAINING, "--steps", "3", "-o", "result.json")
    assert len(seconds_of(log)) == 2  # the third one ends inside of its optimizer
    assert len(json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))["steps"]) == 3


def test_every_clock_of_the_script_is_simulated(live: Run) -> None:
    status, log, _ = live(CLOCKS, "--start-time", "2027-05-06T07:00:00Z")
    assert status == 0
    assert log.splitlines() == [
        "began 1809586800.0 2027-05-06 200",
        "kinds True True",
        "shown True <class 'float'>",
        "real ones True True",
        "slept 3600.0 3600.0 2027-05-06T08:00",
        "timeit True",
        "1809590401",
    ]


def test_a_library_in_c_that_derives_from_datetime_runs(live: Run) -> None:
    pytest.importorskip("pandas")
    status, log, _ = live("import gc, pandas, datetime\ngc.collect()\nprint(datetime.datetime.now().month)\n")
    assert (status, log) == (0, "1\n")


def test_events_have_the_times_of_the_gpu(live: Run) -> None:
    _, log, _ = live(EVENTS)
    assert log.splitlines() == [
        "done before False",
        "error Both events must be completed before calculating elapsed time.",
        "done after True",
        "one product True",
    ]


MEMORY = """
import torch
before = torch.empty(2**30, dtype=torch.uint8, device="cuda")
print(torch.cuda.memory_allocated(), torch.cuda.get_device_name())
try:
    torch.empty(2**37, dtype=torch.uint8, device="cuda")
except torch.cuda.OutOfMemoryError as error:
    print(str(error)[:53])
open("written.txt", "w").write("by the script")
print(open("written.txt").read())
"""


def test_memory_and_files_are_the_runs_own(live: Run, tmp_path: Path) -> None:
    (tmp_path / "written.txt").write_text("by the user", encoding="utf-8")
    _, log, said = live(MEMORY, "--files", "own")
    assert log.splitlines() == [
        "1073741824 NVIDIA H100 80GB HBM3",
        "CUDA out of memory. Tried to allocate 128.00 GiB. GPU",
        "by the script",
    ]
    assert (tmp_path / "written.txt").read_text(encoding="utf-8") == "by the user"
    assert "triosim: what the script wrote is in own" in said


AT_THE_END = """
import atexit, multiprocessing, os, time
atexit.register(lambda: open("written.txt", "w").write("at the end"))
atexit.register(lambda: print("the end at", int(time.time())))
os.close(os.open("kept.txt", os.O_WRONLY | os.O_TRUNC))
print("kept", repr(open("kept.txt").read()))
child = multiprocessing.get_context("fork").Process(target=print, args=("child",))
child.start()
child.join()
print("ended", child.exitcode)
"""


def test_what_a_script_does_at_its_end_and_in_its_processes_is_the_runs_own(live: Run, tmp_path: Path) -> None:
    for name in ("written.txt", "kept.txt"):
        (tmp_path / name).write_text("by the user", encoding="utf-8")
    status, log, _ = live(AT_THE_END, "--files", "own")
    assert status == 0
    assert [line for line in log.splitlines() if line != "child"] == ["kept ''", "ended 0", "the end at 1767225600"]
    for name in ("written.txt", "kept.txt"):
        assert (tmp_path / name).read_text(encoding="utf-8") == "by the user"


def test_the_exit_status_is_the_scripts(live: Run) -> None:
    assert live("import sys\nsys.exit(7)\n")[0] == 7
    status, _, said = live("def f():\n    raise KeyError('mine')\nf()\n")
    assert status == 1
    assert "line 2, in f" in said
    assert "triosim/" not in said  # the script's frames alone


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--start-time", "noon"], "--start-time: 'noon' is no time; write 2026-01-01T00:00:00Z"),
        (["--files", "train.py"], "--files: nothing can be written into 'train.py': File exists; name a folder"),
        (["--files", "."], "--files: '.' holds the files of the working directory"),
        (["--step", "9"], "--step: there is no step 9; the script ran steps 0 to 5"),
        (["--world", "2", "--ranks", "5"], "--ranks: there is no rank 5 in a world of 2; give ranks from 0 to 1"),
    ],
)
def test_what_is_wrong_is_one_line(live: Run, options: list[str], said: str) -> None:
    status, _, error = live(TRAINING, *options)
    assert status == 2
    assert said in error
    assert "Traceback" not in error
