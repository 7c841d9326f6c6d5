"""The steady state: of many micro-batches that do the same a few are simulated, and nothing in the result says which."""

from __future__ import annotations

from typing import Any

import pytest
import simpy
import traces

from triosim import Result, simulate
from triosim.networks.base import Network
from triosim.results.values import ResultData

GPT = traces.transformer(batch=64, tokens=16, blocks=4, heads=8, width=32)


def run(fold: bool | None, parallel: str, system: str, micro_batches: int, **options: Any) -> ResultData:
    return simulated(fold, parallel, system, micro_batches, **options).data


def simulated(fold: bool | None, parallel: str, system: str, micro_batches: int, **options: Any) -> Result:
    found = {"topology": system, "compute_model": "linear", "tp_style": "megatron", **options}
    return simulate(GPT, parallel, fold=fold, micro_batches=micro_batches, **found)


def stretched(result: Result) -> bool:
    """Whether periods were left out."""
    assert result.recording is not None
    return result.recording.is_stretched


def figures(data: ResultData) -> dict[str, Any]:
    ranks = [(r.compute_s, r.communication_s, r.exposed_communication_s, r.idle_s, r.waiting_s) for r in data.ranks]
    exposed = sorted((one.axis, one.layer, one.exposed_s, one.waiting_s) for one in data.exposed_communication)
    return {
        "step": (data.step_time_s, data.launch_wait_s, *data.iterations),
        "ranks": [value for rank in ranks for value in rank],
        "layers": [value for one in data.layers for value in (one.total_s, one.operators)],
        "operators": [value for one in data.operators for value in (one.total_s, one.count)],
        "transfers": [value for one in data.collectives for value in (one.count, one.total_s, one.bytes)],
        "links": [value for one in data.links for value in (one.bytes, one.utilisation)],
        "exposed": [value for one in exposed for value in one[2:]],
        "where": [one[:2] for one in exposed],
    }


def same(one: ResultData, other: ResultData) -> None:
    found, expected = figures(one), figures(other)
    assert found.pop("where") == expected.pop("where")
    for name, values in found.items():
        assert values == pytest.approx(expected[name], rel=1e-9, abs=1e-9 * other.step_time_s), name


CASES = [
    ("pp=2", "dgx-a100(gpus=8)", {"schedule": "1f1b"}),
    ("pp=4", "ring(4, bandwidth=5 GB/s, latency=20 us)", {"schedule": "1f1b", "host_overhead": "20 us"}),
    ("pp=4", "dgx-a100(gpus=8)", {"schedule": "zero-bubble"}),
    ("dp=2,pp=2", "dgx-a100(gpus=8)", {"schedule": "interleaved", "virtual_stages": 2}),
    ("fsdp=2,tp=2,pp=2", "dgx-h100", {"schedule": "1f1b", "sequence_parallel": True, "options": {"overlap": "ring"}}),
    ("fsdp=4", "ring(4, bandwidth=5 GB/s, latency=1 us)", {}),
    ("ddp=2", "dgx-h100", {"network": "analytical"}),
]


@pytest.mark.parametrize(("parallel", "system", "options"), CASES)
def test_results_are_the_same_as_of_all_micro_batches(parallel, system, options):
    found = simulated(True, parallel, system, 64, **options)
    assert stretched(found)
    whole = simulated(False, parallel, system, 64, **options)
    assert not stretched(whole)
    same(found.data, whole.data)


def test_a_host_that_is_slower_than_its_gpu_uses_up_what_it_is_ahead():
    options = {"schedule": "1f1b", "host_overhead": "700 us", "batch_size": 256}
    found = simulated(True, "pp=4", "dgx-h100", 256, **options)
    assert not stretched(found)  # all is drawn before that is used up
    same(found.data, run(False, "pp=4", "dgx-h100", 256, **options))


def alternating(every: int) -> type[Network]:
    """A network whose two transfers of a micro-batch take longer than those of the one before, from so many on as at first."""

    class Alternating(Network):
        def __init__(self, env: simpy.Environment, topology: Any) -> None:
            super().__init__(env, topology)
            self._sent = 0

        def transfer(self, source: Any, destination: Any, nbytes: float) -> simpy.Event:
            self._sent += 1
            return self.env.timeout(1e-3 * (1 + self._sent // 2 % every))

    return Alternating


@pytest.mark.parametrize(("every", "micro_batches"), [(2, 63), (2, 64), (3, 126), (3, 127), (3, 128), (5, 256)])
def test_every_second_third_or_fifth_micro_batch_may_be_alike(every, micro_batches):
    # Hosts draw some 20 micro-batches ahead of the GPU here, so that many are simulated before a period counts.
    options = {"network": alternating(every), "schedule": "1f1b", "batch_size": micro_batches}
    found = simulated(True, "pp=2", "dgx-a100(gpus=8)", micro_batches, **options)
    assert stretched(found)
    same(found.data, run(False, "pp=2", "dgx-a100(gpus=8)", micro_batches, **options))


class Tiring(Network):
    """A network that gets slower with every transfer: no two micro-batches are alike."""

    def __init__(self, env: simpy.Environment, topology: Any) -> None:
        super().__init__(env, topology)
        self._sent = 0

    def transfer(self, source: Any, destination: Any, nbytes: float) -> simpy.Event:
        self._sent += 1
        return self.env.timeout(1e-3 + 1e-6 * self._sent)


def test_every_micro_batch_is_simulated_where_no_two_are_alike():
    options: dict[str, Any] = {"network": Tiring, "schedule": "1f1b"}
    found = simulated(None, "pp=2", "dgx-a100(gpus=8)", 64, **options)
    assert not stretched(found)
    assert found.step_time_s == run(False, "pp=2", "dgx-a100(gpus=8)", 64, **options).step_time_s


def test_a_timeline_shows_every_micro_batch():
    assert not stretched(simulated(None, "pp=2", "dgx-a100(gpus=8)", 64, schedule="1f1b", timeline=True))
