"""``triosim capture``: a script goes in, a trace comes out, and whatever is wrong is one line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import triosim
from triosim.cli import run
from triosim.trace import Trace

torch = pytest.importorskip("torch")

TRAINING = """
import argparse, torch
from torch import nn
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=4)
parser.add_argument("--device", default="cpu")
parser.add_argument("--compile", action="store_true")
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("-o")
options = parser.parse_args()
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5)).to(options.device)
if options.compile:
    model = torch.compile(model)
optimizer = torch.optim.AdamW(model.parameters())
data = torch.utils.data.TensorDataset(torch.randn(100, 3, 8, 8), torch.zeros(100, dtype=torch.int64))
loader = torch.utils.data.DataLoader(data, options.batch_size, num_workers=options.workers)
for inputs, targets in loader:
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs.to(options.device)), targets.to(options.device)).backward()
    optimizer.step()
    print("a step of", options.o)
"""


UNLIKE = """    while first:
        for _ in range(50):
            model(inputs).sum().backward()
        first = False
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text(TRAINING, encoding="utf-8")
    return path


def load(path: Path) -> Trace:
    found = triosim.load_trace(path)
    assert isinstance(found, Trace)
    return found


def test_a_script_is_captured_on_the_cpu(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = run(
        ["capture", "-o", "a.json.gz", "--skip", "1", "--steps", "2", str(script), "--batch-size", "6", "-o", "x"]
    )
    shown = capsys.readouterr()
    assert status == 0
    trace = load(script.parent / "a.json.gz")
    assert (trace.gpu, trace.model, trace.batch_size, trace.times) == ("CPU", "Sequential", 6, "measured")
    assert trace.step_seconds is not None
    assert shown.out.split("\n")[0] == "a step of x"  # what stands behind the script is the script's
    assert "triosim: the profiler adds" in shown.err
    assert shown.err.splitlines()[-1] == "triosim: written to a.json.gz"


def test_an_output_at_the_very_end_is_ours_where_none_stands_before(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["capture", "--steps", "0", str(script), "--batch-size", "3", "-o", "b.json", "-q"]) == 2
    assert (
        "unrecognized arguments" in capsys.readouterr().err
    )  # -o was not at the end: it is the script's, and so is -q
    assert run(["capture", "--steps", "0", str(script), "--batch-size", "3", "-o", "b.json"]) == 0
    assert load(script.parent / "b.json").batch_size == 3
    assert capsys.readouterr().out.split("\n")[0] == "a step of None"


def test_a_name_that_is_no_name_of_a_trace_is_refused(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["capture", "-o", "b.txt", str(script)]) == 2
    assert "b.txt: does not name a trace; end it in .json or .json.gz" in " ".join(capsys.readouterr().err.split())
    assert not (script.parent / "b.txt").exists()


def test_an_operator_without_a_rule_for_its_shape_is_named(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if pytest.importorskip("torch").backends.cuda.is_built():
        pytest.skip("this operator then ends in PyTorch's own error")
    script.write_text(
        "import torch\ntorch.batch_norm_update_stats(torch.randn(4, 4).cuda(), None, None, 0.1)\n", encoding="utf-8"
    )
    assert run(["capture", "--fake", "-o", "b.json", str(script)]) == 2
    assert "line 2: without a GPU the shape of what aten::batch_norm_update_stats returns" in capsys.readouterr().err


def test_one_step_has_nothing_to_vary_from(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["capture", "-o", "a.json", "--skip", "1", "--steps", "1", str(script)]) == 0
    said = capsys.readouterr().err
    assert "the profiler adds" in said
    assert "steps vary by" not in said


@pytest.mark.slow
def test_a_step_unlike_the_others_is_no_part_of_one(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The step that was profiled ran the model fifty times more than those after it."""
    text = script.read_text(encoding="utf-8").replace("    optimizer.step()\n", UNLIKE + "    optimizer.step()\n")
    script.write_text("first = True\n" + text, encoding="utf-8")
    assert run(["capture", "-o", "a.json", "--skip", "0", "--warmup", "0", "--steps", "2", str(script)]) == 0
    said = capsys.readouterr().err
    assert "steps differ in length" in said
    assert "% of that" not in said


def test_without_an_output_the_trace_is_named_after_the_script(script: Path) -> None:
    assert run(["capture", "--steps", "0", str(script)]) == 0
    assert load(script.parent / "train.trace.json.gz").batch_size == 4


def test_without_a_gpu_times_are_predicted(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["capture", "--fake", "--gpu", "A100", "-o", "f.json.gz", str(script), "--device", "cuda"]) == 0
    trace = load(script.parent / "f.json.gz")
    assert (trace.gpu, trace.times, trace.step_seconds) == ("A100-SXM-80GB", "predicted", None)
    working = [operator for operator in trace.operators if operator.seconds]
    assert {operator.predicted_by for operator in working} >= {"roofline"} or all(o.predicted_by for o in working)
    views = [operator for operator in trace.operators if operator.name in ("aten::view", "aten::t", "aten::detach")]
    assert views
    assert not any(operator.seconds for operator in views)
    assert "predicted" in capsys.readouterr().err


def test_fake_and_measured_have_the_same_products_and_convolutions(script: Path) -> None:
    assert run(["capture", "-q", "--steps", "0", "-o", "cpu.json", str(script)]) == 0
    assert run(["capture", "-q", "--fake", "-o", "fake.json", str(script), "--device", "cuda"]) == 0
    wanted = {"conv2d": "conv", "convolution": "conv", "linear": "product", "addmm": "product"}

    def forward(name: str) -> list[tuple[str, tuple[int, ...], tuple[int, ...]]]:
        return [
            (wanted[kind], operator.inputs[0].shape, operator.outputs[0].shape)
            for operator in load(script.parent / name).operators
            if operator.phase == "forward" and (kind := operator.name.partition("::")[2]) in wanted
            for operator in (reordered(operator),)
        ]

    assert forward("cpu.json") == forward("fake.json")
    assert len(forward("cpu.json")) == 2


def reordered(operator: triosim.trace.Operator) -> triosim.trace.Operator:
    """addmm is given the bias first."""
    import dataclasses

    activations = tuple(tensor for tensor in operator.inputs if tensor.category != "parameter")
    return dataclasses.replace(operator, inputs=activations)


def test_a_compiled_model_and_a_loader_s_processes_are_said(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--compile", "--workers", "1"]
    assert run(["capture", "--skip", "1", "--steps", "1", "-o", "c.json", str(script), *arguments]) == 0
    assert "triosim: warning: train.py:13: compilation is left out" in capsys.readouterr().err
    names = {operator.name for operator in load(script.parent / "c.json").operators}
    assert {"aten::conv2d", "ConvolutionBackward0"} <= names


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["none.py"], "none.py: there is no such script"),
        (["-o", "no/such/folder.json", "train.py"], "no/such/folder.json: the folder 'no/such' does not exist"),
        (["-o", "train.py", "train.py"], "train.py: is an input of this command"),
        (["--device", "tpu", "train.py"], "--device: 'tpu' is not known"),
        (["--gpu", "H100", "train.py"], "--gpu: only a capture with --fake simulates a GPU; add --fake"),
        (["--fake", "--gpu", "H1000000", "train.py"], "there is no GPU 'H1000000' in the catalogue"),
        (["--skip", "-1", "train.py"], "--skip: -1 is less than 0"),
        (["--batch-size", "0", "train.py"], "--batch-size: 0 is less than 1; give 1 or more"),
        ([], "Missing argument 'SCRIPT'"),
    ],
)
def test_what_is_wrong_is_one_line_before_anything_runs(
    script: Path, capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    assert run(["capture", *options]) == 2
    shown = capsys.readouterr()
    assert said in shown.err
    assert shown.err.count("\n") == 1
    assert shown.out == ""
    assert [path.name for path in script.parent.iterdir()] == ["train.py"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_script_that_asks_for_a_gpu_that_is_not_there_is_told_of_the_other_way(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["capture", str(script), "--device", "cuda"]) == 2
    error = capsys.readouterr().err
    assert "train.py: line 11: the script asks for a GPU, and there is none here" in error
    assert "triosim capture --fake --gpu H100" in error
    assert "Traceback" not in error
    assert run(["capture", "--device", "cuda", str(script)]) == 2
    assert "--device cuda: there is no GPU here" in capsys.readouterr().err


@pytest.mark.parametrize("fake", [[], ["--fake"]])
def test_a_script_that_raises_shows_its_traceback_and_a_last_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fake: list[str]
) -> None:
    path = tmp_path / "broken.py"
    path.write_text("import torch\ntorch.ones(2, 3) @ torch.ones(4, 5)\n", encoding="utf-8")
    assert run(["capture", *fake, "-o", str(tmp_path / "t.json"), str(path)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1] == f'  File "{path}", line 2, in <module>'
    assert "the capture has no step: the script raised RuntimeError" in lines[-1]
    assert not (tmp_path / "t.json").exists()


STEP = """
import torch
library = torch.library.Library("unheard_of", "DEF")
library.define("operator(Tensor data) -> Tensor")
device = "cuda" if torch.cuda.is_available() else "cpu"
model = torch.nn.Linear(4, 2).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    data = model(torch.ones(3, 4, device=device))
    {line}
    data.sum().backward()
    {step}
"""


def captured(folder: Path, line: str, step: str, *options: str) -> int:
    path = folder / "train.py"
    path.write_text(STEP.format(line=line, step=step), encoding="utf-8")
    return run(["capture", "-o", str(folder / "t.json"), *options, str(path)])


@pytest.mark.parametrize("options", [["--steps", "0"], ["--fake"]])
def test_a_script_that_never_calls_an_optimizer_has_no_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    assert captured(tmp_path, "pass", "pass", *options) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert "the capture has no step: the script ended before an optimizer's step() returned" in said
    assert [one.name for one in tmp_path.iterdir()] == ["train.py"]


def test_a_value_that_steers_the_script_is_said_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert captured(tmp_path, "data = data if data.sum() > 3 else 2 * data", "optimizer.step()", "--fake") == 0
    warned = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    assert warned == [
        "triosim: warning: train.py:10: reads a tensor's value, which is not computed: it is assumed to be False"
    ]


def test_an_operator_without_a_known_shape_is_named_with_the_script_s_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert captured(tmp_path, "torch.ops.unheard_of.operator(data)", "optimizer.step()", "--fake") == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert "train.py: line 10: without a GPU the shape of what unheard_of::operator returns is not known" in said
    assert "register_fake" in said
    assert not (tmp_path / "t.json").exists()


def test_nested_tensors_are_said_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = "torch.nested.nested_tensor([data, data[:1]], layout=torch.jagged)"
    assert captured(tmp_path, line, "optimizer.step()", "--fake") == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert "train.py: line 10: nested tensors are not captured without a GPU; pad them, or capture on a GPU" in said


@pytest.mark.parametrize("fake", [[], ["--fake"]])
def test_ctrl_c_leaves_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str], fake: list[str]) -> None:
    path = tmp_path / "stopped.py"
    path.write_text("raise KeyboardInterrupt\n", encoding="utf-8")
    assert run(["capture", *fake, "-o", str(tmp_path / "t.json"), str(path)]) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "triosim: interrupted"
    assert [one.name for one in tmp_path.iterdir()] == ["stopped.py"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_is_said(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["capture", "--skip", "0", "--steps", "0", "-o", "/dev/full", str(script)]) == 2
    assert (
        capsys.readouterr().err.splitlines()[-1]
        == "triosim: error: /dev/full: could not be written: No space left on device"
    )


@pytest.mark.slow
@pytest.mark.parametrize("options", [["--fake", "train.py", "--device", "cuda"], ["--steps", "0", "train.py"]])
def test_where_files_may_not_grow_nothing_is_left_behind(script: Path, options: list[str]) -> None:
    """In a process of its own, whose files the system keeps small, as a quota does."""
    resource = pytest.importorskip("resource")
    command = [sys.executable, "-m", "triosim", "capture", "-o", "t.json", *options]
    ran = subprocess.run(
        command,
        cwd=script.parent,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)),
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 2, ran.stderr
    if "--fake" in options:
        assert ran.stderr.splitlines()[-1] == "triosim: error: t.json: could not be written: File too large"
    else:
        assert "profiler.json: the profiler could not write it" in ran.stderr.splitlines()[-1]
    assert [one.name for one in script.parent.iterdir()] == ["train.py"]


def test_without_pytorch_one_is_told_what_to_install(
    script: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    for fake in ([], ["--fake"]):
        assert run(["capture", *fake, str(script)]) == 2
        assert "pip install 'triosim[torch]'" in capsys.readouterr().err
