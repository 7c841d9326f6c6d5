"""Same input, same output, to the last bit, whatever the hash seed is and however often it runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

VGG = Path(__file__).resolve().parents[1] / "examples" / "traces" / "vgg13_a100_fake.json.gz"
COMMON = ["--topology", "mesh(4x2, bandwidth=25 GB/s, latency=1 us)", "--collective-form", "steps"]


@pytest.mark.parametrize("parallel", ["ddp", "dp=2,pp=2,tp=2"])
@pytest.mark.slow
def test_results_do_not_depend_on_the_hash_seed(parallel: str) -> None:
    outputs = []
    for seed in ("0", "1", "2026"):
        command = [
            sys.executable,
            "-m",
            "triosim",
            "simulate",
            str(VGG),
            "--parallel",
            parallel,
            *COMMON,
            "--format",
            "json",
        ]
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        outputs.append(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)
    assert outputs[0] == outputs[1] == outputs[2]
    assert json.loads(outputs[0])["step_time_s"] > 0
