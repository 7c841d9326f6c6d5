"""The plug-ins in the documentation run as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import traces

import triosim
from triosim.comparison.schedule_alone import run_schedule

DOCS = Path(__file__).resolve().parents[3] / "docs"
SWITCH = {"topology": "switch", "bandwidth": "25 GB/s"}


@pytest.fixture(scope="module")
def plug_ins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with each code block that begins with a file's name."""
    folder = tmp_path_factory.mktemp("plug_ins")
    for page in ("extrapolators.md", "compute-models.md"):
        for code, name in re.findall(r"```python\n(# (\w+\.py).*?)```", (DOCS / page).read_text(), re.DOTALL):
            (folder / name).write_text(code)
    return folder


def test_hooks_reduce_each_gradient_by_itself(plug_ins: Path) -> None:
    tasks = traces.draw(traces.planned(traces.mlp(), f"{plug_ins}/eager.py:Eager=4", 4).tasks(0))
    assert len(traces.collectives_of(tasks)) == 6


def test_hooks_compose_with_a_pipeline(plug_ins: Path) -> None:
    result = triosim.simulate(traces.mlp(), f"{plug_ins}/eager.py:Eager=2,pp=2", gpus=4, topology=SWITCH)
    assert result.step_time_s > 0


def test_gossip_writes_its_own_tasks(plug_ins: Path) -> None:
    result = triosim.simulate(traces.mlp(), f"{plug_ins}/gossip.py:Gossip", gpus=4, topology=SWITCH)
    assert result.step_time_s >= traces.mlp().seconds


def test_a_compute_model_changes_what_is_predicted_and_not_what_is_measured(plug_ins: Path) -> None:
    model = f"{plug_ins}/roofline.py:Roofline"
    measured = triosim.simulate(traces.mlp(), compute_model=model)
    assert measured.step_time_s == pytest.approx(traces.mlp().seconds)
    larger = triosim.simulate(traces.mlp(), compute_model=model, batch_size=64)
    assert larger.step_time_s > measured.step_time_s


def test_a_schedule_of_the_documents_takes_as_long_as_gpipe(plug_ins: Path) -> None:
    own, known = (run_schedule(name, 4, 8).seconds for name in (f"{plug_ins}/reversed_gpipe.py:ReversedGPipe", "gpipe"))
    assert own == pytest.approx(known, rel=1e-9)
