"""Jobs on sixteen GPUs that are divided in several ways at once, of which launch files are written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.search_spaces import LLAMA, MIXTURE
from triosim.config import RunConfig
from triosim.launch_files.job import Job, job_of
from triosim.launch_files.writing import Exported, write_launch_files

GPUS = 16
MIXES: dict[str, dict[str, Any]] = {
    "fsdp-pp": {"parallel": "fsdp=8,pp=2"},
    "zero1-pp": {"parallel": "zero1=4,pp=4", "micro_batches": 8},
    "ddp-tp-pp": {"parallel": "ddp=2,tp=4,pp=2", "micro_batches": 4},
    "fsdp-tp": {"parallel": "fsdp=4,tp=4"},
    "ddp-tp": {"parallel": "ddp=4,tp=4"},
    "zero1-tp": {"parallel": "zero1=4,tp=4"},
    "tp": {"parallel": "tp=8,ddp=2"},
    "fsdp-cp": {"parallel": "fsdp=4,cp=4"},
    "zero1-cp": {"parallel": "zero1=4,cp=4"},
    "fsdp-tp-cp": {"parallel": "fsdp=4,tp=2,cp=2"},
    "fsdp-tp-cp-pp": {"parallel": "fsdp=2,tp=2,cp=2,pp=2", "micro_batches": 4},
    "hybrid": {"parallel": "ddp=2,fsdp=8"},
    "ddp-ep": {"parallel": "ddp=16,ep=4"},
    "fsdp-ep-tp": {"parallel": "fsdp=8,ep=8,tp=2"},
    "fsdp-ep-pp": {"parallel": "fsdp=8,ep=4,pp=2"},
}


def model_of(mix: str) -> str:
    """Return a mix's model: one with experts where these are divided."""
    return MIXTURE if "ep=" in MIXES[mix]["parallel"] else LLAMA


def config_of(mix: str) -> RunConfig:
    """Return the options of a mix: 32 samples a step."""
    return RunConfig.of(**{"gpus": GPUS, "seq": 1024, "global_batch_size": 32, **MIXES[mix]})


def job_of_mix(mix: str) -> Job:
    """Return the job of a mix."""
    return job_of(model_of(mix), config_of(mix), GPUS)


def written(framework: str, mix: str, folder: Path) -> list[str]:
    """Write a framework's files of a mix; return what is said about them."""
    return write_launch_files(str(folder), [framework], Exported(job_of_mix(mix), 8, config_of(mix)))
