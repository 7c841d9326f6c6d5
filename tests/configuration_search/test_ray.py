"""Search on a Ray cluster of two nodes on this machine: as in processes, also where a node is killed in the middle."""

from __future__ import annotations

import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import triosim
from tests.search_spaces import GPT
from triosim.configuration_search.outcome import Outcome
from triosim.configuration_search.ray_workers import on_ray
from triosim.errors import OptionError, SimulationError

ray = pytest.importorskip("ray")
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # no node can import it

RUN: dict[str, Any] = {"gpus": 4, "topology": "dgx-h100", "global_batch_size": 16, "seq": 128}
VARIED = {"tp": [1, 2], "pp": [1, 2], "micro_batch_size": [1, 2, 4]}


@pytest.fixture
def nodes() -> Iterator[Any]:
    """A cluster of a head with one processor and a node with another."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    other = cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    try:
        yield cluster, other
    finally:
        ray.shutdown()
        cluster.shutdown()


def slow(point: int) -> Outcome:
    time.sleep(0.3)
    return Outcome(str(point), "excluded", ray.get_runtime_context().get_node_id())


def failing(point: int) -> Outcome:
    raise OptionError("no such GPU", where=f"--gpu H{point}")


def dying(point: int) -> Outcome:
    import os

    os._exit(1)


def test_a_killed_node_loses_no_point_and_none_counts_twice(nodes: Any) -> None:
    cluster, other = nodes
    found: list[tuple[int, Outcome]] = []
    with on_ray(slow) as (evaluate,):
        for point, outcome in evaluate(range(24), shared=lambda point: point // 4):
            found.append((point, outcome))
            if len(found) == 8:
                cluster.remove_node(other, allow_graceful=False)
    assert Counter(point for point, _ in found) == Counter(range(24))
    assert all(outcome.key == str(point) for point, outcome in found)
    assert len({outcome.reason for _, outcome in found}) == 2  # both nodes took part


def test_a_search_of_which_a_node_is_killed_finds_what_processes_find(nodes: Any, tmp_path: Path) -> None:
    cluster, other = nodes
    study, phases = tmp_path / "study.db", list[str]()

    def kill(phase: str, *_: object) -> None:
        phases.append(phase)
        if phases.count("simulations") == 2:
            cluster.remove_node(other, allow_graceful=False)

    here = triosim.search(GPT, vary=VARIED, **RUN).to_dict()
    there = triosim.search(GPT, vary=VARIED, executor="ray", study=str(study), tell=kill, **RUN).to_dict()
    assert phases.count("memory and bounds") == 12
    assert {name: there[name] for name in ("best", "top", "left", "certificate")} == {
        name: here[name] for name in ("best", "top", "left", "certificate")
    }
    with closing(sqlite3.connect(study)) as kept:
        assert kept.execute("SELECT count(*) FROM outcomes").fetchone() == (12,)
        assert kept.execute("SELECT count(*) FROM claims").fetchone() == (0,)


def test_errors_end_the_search(nodes: Any) -> None:
    with on_ray(failing) as (evaluate,), pytest.raises(OptionError, match="no such GPU"):
        list(evaluate([100]))
    with on_ray(dying, jobs=1) as (evaluate,), pytest.raises(SimulationError, match="3 workers died at it"):
        list(evaluate([100]))


def test_without_a_cluster_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(SimulationError, match="there is no Ray cluster"):
        triosim.search(GPT, vary=VARIED, executor="ray", **RUN)
