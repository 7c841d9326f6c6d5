"""A script that starts ``nvidia-smi`` is told of the fake GPU, on a machine that has neither."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from triosim.tracer.fake_device import FakeDevice  # noqa: E402
from triosim.tracer.surroundings.nvidia_smi_program import answer  # noqa: E402

#: An H100 of 79.18 GiB, of which the CUDA context takes 0.7 GiB.
TOTAL, CONTEXT = 81080, 716
NAME = "NVIDIA H100 80GB HBM3"


def printed(command: str | list[str]) -> str:
    shell = isinstance(command, str)
    return subprocess.run(command, shell=shell, capture_output=True, text=True, check=True).stdout


def test_a_query_tells_name_and_memory_in_use() -> None:
    with FakeDevice("H100-SXM", limited=True):
        held = torch.empty(2**30, dtype=torch.uint8, device="cuda")  # 1,024 MiB
        found = printed(["nvidia-smi", "--query-gpu=name,memory.used", "--format=csv"])
        assert found == f"name, memory.used [MiB]\n{NAME}, {CONTEXT + 1024} MiB\n"
        found = printed("nvidia-smi --query-gpu=memory.total,fan.speed --format=csv,noheader,nounits | head -1")
        assert found == f"{TOTAL}, [N/A]\n"
        del held


def test_the_table_and_the_list_show_each_gpu_of_the_machine(capfd: pytest.CaptureFixture[str]) -> None:
    with FakeDevice("H100-SXM", devices=2, limited=True):
        assert os.system("nvidia-smi") == 0
        assert printed(["/usr/bin/nvidia-smi", "-L"]).splitlines() == [
            f"GPU {index}: {NAME} (UUID: GPU-simulated-{index})" for index in (0, 1)
        ]
        assert printed(["nvidia-smi", "-i", "1", "--query-gpu", "index", "--format", "csv,noheader"]) == "1\n"
    assert capfd.readouterr().out.count(NAME) == 2


def test_other_programs_start_as_they_are() -> None:
    with FakeDevice("H100-SXM"):
        assert printed([sys.executable, "-c", "print('nvidia-smi')"]) == "nvidia-smi\n"
        assert printed("echo my-nvidia-smi nvidia-smi.log") == "my-nvidia-smi nvidia-smi.log\n"


def test_units_follow_the_kind_of_a_field() -> None:
    gpu = {"index": "0", "name": "A", "utilization.gpu": "100", "memory.used": "5"}
    found = answer(["--query-gpu=gpu_name, utilization.gpu,memory.used", "--format=csv"], [gpu])
    assert found == "gpu_name, utilization.gpu [%], memory.used [MiB]\nA, 100 %, 5 MiB"
