"""Shared fixtures of all tests: the folder of measured data, and skipping where it is absent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from triosim.gpus import known_gpus

os.environ.setdefault("OMP_NUM_THREADS", "1")  # pytest -n has a process for each core; threads beside them stall fits

# Nothing is timed in tests: a busy machine is no failure.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

DEFAULT_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(autouse=True)
def own_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """GPUs of files that a test reads are unknown to the next one."""
    monkeypatch.setattr(known_gpus, "_read", dict(known_gpus._read))


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of measured data, named by TRIOSIM_DATA; without it the test is skipped."""
    folder = Path(os.environ.get("TRIOSIM_DATA") or DEFAULT_DATA)
    if not folder.is_dir():
        pytest.skip(f"no measured data at {folder}; set TRIOSIM_DATA to their folder")
    return folder
