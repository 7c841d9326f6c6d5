"""What no machine and no patience has room for is refused before the work begins, in a line that names the limit."""

from __future__ import annotations

import io
import json
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest

from triosim import cli

TRACE = str(Path(__file__).parents[2] / "examples" / "traces" / "resnet50_a100_fake.json.gz")
LIMIT = "more than the limit of"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("simulate TRACE -b 99999999999999999999", "--batch-size: 99999999999999999999 is more than 1000000000000"),
        ("memory TRACE -b 1000000000000", LIMIT),
        ("simulate TRACE --iterations 1000000000", "1000000000 is more than 100000"),
        ("simulate TRACE -b 1000000000 --micro-batches 1000000000", f"forward and backward passes are {LIMIT}"),
        ("simulate TRACE -p ddp -n 100000000", f"100,000,000 GPUs are {LIMIT} 200,000; set TRIOSIM_LIMITS=500 in"),
        ("simulate llama3-8b --gpu H100 --layers 99999999", f"99,999,999 layers of a model are {LIMIT} 5,000"),
        ("describe gpt2 --layers 4999 -q -o -", f"operators of a forward pass are {LIMIT} 50,000"),
        (
            "search gpt2 --layers 4999 --gpu H100 --gpus 4 --global-batch-size 2 -q",
            f"operators of a forward pass are {LIMIT}",
        ),
        ("simulate llama3-8b --gpu H100 --seq 99999999999", f"elements of a tensor are {LIMIT}"),
        ("schedule 1f1b --stages 100000", f"20,000,000,000 forward and backward passes are {LIMIT} 200,000"),
        ("topology fully_connected(2000,bandwidth=1GB/s)", f"that are all connected are {LIMIT} 500,000"),
        ("topology dgx-h100 --gpus 99999999", f"99,999,999 GPUs are {LIMIT} 200,000; set TRIOSIM_LIMITS=500 in"),
        ("topology switch(99999999,bandwidth=1GB/s)", f"gpus: 99999999 is {LIMIT} 200,000; set TRIOSIM_LIMITS=500 in"),
        ("topology switch(4,bandwidth=1e30)", "is more than any machine has"),
        ("simulate TRACE --host-overhead 1e18", "is more than any machine has"),
        (
            "topology switch(4,bandwidth=1e-300GB/s)",
            "is less than any machine has; give at least 0.001 bytes per second",
        ),
    ],
)
def test_what_is_beyond_a_limit_is_refused_at_once(command: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    began = time.process_time()
    assert cli.run([TRACE if word == "TRACE" else word for word in command.split()]) == 2
    errors = capsys.readouterr().err
    assert said in errors
    assert errors.count("triosim: error") == 1
    assert time.process_time() - began < 10


def test_a_config_of_very_many_blocks_is_refused_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.json"
    sizes = {"depths": [1_000_000_000], "hidden_sizes": [16], "image_size": 32, "num_labels": 10}
    path.write_text(json.dumps({"model_type": "convnext", **sizes}))
    assert cli.run(["simulate", str(path), "--gpu", "H100"]) == 2
    assert "1,000,000,000 layers of a model are more than the limit" in capsys.readouterr().err


def test_a_batch_that_no_input_has_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.json"
    assert (
        cli.run(["describe", "gpt2", "--gpu", "H100", "--layers", "1", "-s", "16", "-b", "4", "-q", "-o", str(path)])
        == 0
    )
    trace = json.loads(path.read_text())
    path.write_text(json.dumps({**trace, "batch_size": 3}))
    assert cli.run(["show", str(path)]) == 2
    assert "batch_size: 3 samples are in no input: (4, 16)" in capsys.readouterr().err


def test_a_small_file_of_models_does_not_fill_the_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "models.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("about.npy", bytes(100_000_000))
    assert path.stat().st_size < 200_000
    assert cli.run(["simulate", TRACE, "--models", str(path)]) == 2
    assert f"bytes out of a file that small are {LIMIT} 32,000,000" in capsys.readouterr().err


def test_an_array_that_claims_a_false_size_is_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (10**13,)})
    path = tmp_path / "models.npz"
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr("about.npy", header.getvalue())
    assert cli.run(["simulate", TRACE, "--models", str(path)]) == 2
    assert "is not a file of fitted models" in capsys.readouterr().err
