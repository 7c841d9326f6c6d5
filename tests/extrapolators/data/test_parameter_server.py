"""Parameter servers, by hand: workers compute for 18 ms, servers update for 3 ms, and 10 ms are for gradients or parameters."""

from __future__ import annotations

from typing import Any

import pytest
import traces

import triosim
from triosim.errors import OptionError

MLP = traces.mlp()


def system(servers: int, workers: int) -> dict[str, Any]:
    """A link from each worker to each server: all of the parameters, 4,560 bytes, take 10 ms."""
    return {
        "nodes": [f"gpu{rank}" for rank in range(servers + workers)],
        "links": [
            {"from": f"gpu{server}", "to": f"gpu{servers + worker}", "bandwidth": "456 kB/s"}
            for server in range(servers)
            for worker in range(workers)
        ],
    }


def run(
    servers: int = 1, workers: int = 2, iterations: int = 3, slow: dict[int, float] | None = None, **options: str
) -> triosim.Result:
    return triosim.simulate(
        MLP,
        "parameter-server",
        gpus=servers + workers,
        topology=system(servers, workers),
        iterations=iterations,
        conditions={"slow_gpus": slow} if slow else None,
        options={"servers": str(servers), **options},
    )


def ends(result: triosim.Result, rank: int) -> list[float]:
    """When each iteration of a rank ended, in ms."""
    assert result.recording is not None
    return [pytest.approx(1e3 * end, rel=1e-9) for end in result.recording.ranks[rank].iterations]


def test_a_synchronous_step_computes_pushes_updates_and_pulls() -> None:
    result = run()
    assert ends(result, 1) == ends(result, 2) == ends(result, 0) == [41, 82, 123]
    assert result.data.ranks[0].compute_s == pytest.approx(3e-3)
    assert result.data.ranks[1].compute_s == pytest.approx(18e-3)
    assert result.data.global_batch_size == 2 * MLP.batch_size
    assert any("parameter server" in note for note in result.notes)


def test_servers_share_the_parameters_and_the_update() -> None:
    assert ends(run(servers=2), 2) == [18 + 5 + 1.5 + 5, 59, 88.5]


def test_workers_share_the_link_of_their_server() -> None:
    one_switch = "switch(3, bandwidth=456 kB/s, latency=0 s)"
    result = triosim.simulate(MLP, "parameter-server", gpus=3, topology=one_switch)
    assert result.step_time_s == pytest.approx(18e-3 + 20e-3 + 3e-3 + 20e-3)


def test_synchronous_workers_wait_for_the_slowest() -> None:
    assert ends(run(slow={2: 3}), 1) == [54 + 23, 154, 231]


def test_asynchronous_workers_wait_for_nobody() -> None:
    result = run(slow={2: 3}, updates="async")
    assert ends(result, 1) == [41, 82, 123]
    assert ends(result, 2) == [77, 154, 231]
    assert ends(result, 0) == [77, 154, 231]  # the server's iteration ends with that of the last worker
    assert result.data.ranks[0].compute_s == pytest.approx(6e-3)  # an update for each worker's gradients


def test_updates_of_two_workers_at_once_go_one_after_the_other() -> None:
    assert ends(run(iterations=1, updates="async"), 1) == [41]
    assert ends(run(iterations=1, updates="async"), 2) == [44]


def test_bounded_staleness_holds_back_who_is_too_far_ahead() -> None:
    # The slow worker pushes its second gradients at 77 + 54 + 10 = 141 ms; until then the fast one may not end its third step.
    assert ends(run(slow={2: 3}, updates="async", staleness="1"), 1) == [41, 82, 141 + 3 + 10]
    assert ends(run(slow={2: 3}, updates="async", staleness="2"), 1) == [41, 82, 123]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"servers": "3"}, "leaves no worker"),
        ({"servers": "0"}, "0 is less than 1; give 1 or more"),
        ({"updates": "asynchron"}, "did you mean 'async'"),
        ({"staleness": "1"}, "give updates=async too"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        triosim.simulate(MLP, "parameter-server", gpus=3, topology=system(1, 2), options=options)
    with pytest.raises(OptionError, match="leave out --inference"):
        triosim.simulate(MLP, "parameter-server", gpus=3, topology=system(1, 2), training=False)
