"""The training scripts that are there to be captured run as they are: a step each on the CPU, as small as can be."""

from __future__ import annotations

import importlib.util
import os
import runpy
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
from triosim.tracer.device.script_patches import complete_torchvision  # it needs PyTorch

SCRIPTS = Path(__file__).resolve().parents[1] / "examples" / "train"
LANGUAGE = ["--batch-size", "2", "--sequence", "16", "--layers", "2", "--hidden-size", "192", "--vocabulary", "100"]
LLAMA = ["--model", "tiny", "--sequence", "16", "--steps", "1"]


@pytest.fixture(scope="module")
def torchvision() -> None:
    """torchvision, also where it was built for another PyTorch, and transformers, which imports it."""
    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("needs torchvision")
    complete_torchvision()
    importlib.import_module("torchvision")


def run(monkeypatch: pytest.MonkeyPatch, script: str, *arguments: str) -> None:
    """Run a script as ``python`` does, without the seconds that importing PyTorch again takes."""
    monkeypatch.setattr(sys, "argv", [script, *arguments])
    monkeypatch.syspath_prepend(SCRIPTS)
    runpy.run_path(str(SCRIPTS / script), run_name="__main__")


def run_on_ranks(world: int, script: str, *arguments: str) -> list[str]:
    """Run a script on ranks of this machine, as ``torchrun`` starts it; return what each of them printed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(SCRIPTS / script), *arguments]
    ranks = [
        subprocess.Popen(
            command,
            env={**os.environ, **where, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(world)
    ]
    printed = [rank.communicate(timeout=300)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * world, printed
    return printed


@pytest.mark.parametrize("model", ["resnet18", "vgg11", "densenet121", "vit_b_32"])
def test_an_image_classifier_learns_a_step(
    model: str, torchvision: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ("--batch-size", "2", "--image-size", "32", "--classes", "10", "--steps", "1")
    run(monkeypatch, "vision.py", "--model", model, *sizes)
    assert capsys.readouterr().out == "step 0: done\n"


def test_a_small_network_of_pytorch_alone_learns_a_step(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, "convnet.py", "--batch-size", "2", "--image-size", "16", "--steps", "1")
    assert capsys.readouterr().out == "step 0: done\n"


@pytest.mark.parametrize("model", ["gpt2", "bert", "t5", "llama-1b"])
def test_a_language_model_learns_a_step(
    model: str, torchvision: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers")
    run(monkeypatch, "language.py", "--model", model, *LANGUAGE, "--steps", "1", "--accumulate", "2", "--checkpoint")
    assert capsys.readouterr().out == "step 0: done\n"


@pytest.mark.parametrize(
    ("script", "arguments"),
    [
        ("fsdp2.py", [*LLAMA, "--checkpoint"]),
        ("fsdp2.py", [*LLAMA, "--checkpoint", "selective", "--keep", "last", "--foreach"]),
        ("tensor_parallel.py", [*LLAMA, "--sequence-parallel"]),
        ("tensor_parallel.py", [*LLAMA, "--sequence-parallel", "--loss-parallel"]),
        ("pipeline.py", [*LLAMA, "--dtype", "float32"]),
        ("pipeline.py", [*LLAMA, "--dtype", "float32", "--schedule", "Interleaved1F1B"]),
    ],
    ids=["fsdp2", "fsdp2, selective", "tensor parallel", "loss parallel", "pipeline", "interleaved pipeline"],
)
def test_two_ranks_learn_a_step_together(script: str, arguments: list[str]) -> None:
    first, second = run_on_ranks(2, script, *arguments)
    assert "step 0: done" in first
    assert "step 0" not in second


def test_the_scripts_are_plain_pytorch() -> None:
    assert not [path.name for path in SCRIPTS.glob("*.py") if "triosim" in path.read_text(encoding="utf-8")]
