"""The memory footprints of parameter servers, decentralised workers and local SGD: copies of parameters, counted by hand."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

import triosim
from triosim.cli import run
from triosim.errors import OptionError
from triosim.extrapolators import Extrapolator, MemoryFootprint
from triosim.memory import lifetimes, usage
from triosim.memory.world_memory import RankMemory
from triosim.models import GPT
from triosim.tasks import Iteration, TaskStream
from triosim.trace import Trace


@cache
def gpt() -> Trace:
    model = GPT(layers=2, hidden=256, heads=8, vocab=512, sequence=64)
    return triosim.describe(model, batch=2, dtype="fp32", optimizer="adamw")


def bytes_of_parameters() -> int:
    return sum(tensor.nbytes for tensor in gpt().parameters.values())


def ranks(parallel: str, **options: str) -> tuple[RankMemory, ...]:
    found = triosim.rank_memory(gpt(), parallel, options=options)
    for one in found.ranks:
        assert found.report(one.rank).peak_live == one.peak_bytes, "both ledgers count the same"
    return found.ranks


@pytest.mark.parametrize(
    ("options", "copies"),
    [
        # One on its way, and a queue for each of the neighbours: three in a ring with an edge to the most distant one.
        ({}, 1 + 5 * 3),
        ({"graph": "ring", "max_gap": "1"}, 1 + 2 * 2),
        ({"graph": "complete", "max_gap": "3"}, 1 + 4 * 7),
    ],
)
def test_a_worker_of_hop_has_room_for_all_that_may_be_sent_to_it(options: dict[str, str], copies: int) -> None:
    (alone,), (worker,) = ranks("single"), ranks("hop=8", **options)
    assert worker.ranks == tuple(range(8))
    assert worker.peak_bytes - alone.peak_bytes == copies * bytes_of_parameters()


def test_workers_with_more_neighbours_have_more(tmp_path: Path) -> None:
    """A star: the centre hears from three, the others from one."""
    star = tmp_path / "star.txt"
    star.write_text("0 - 1\n0 - 2\n0 - 3\n")
    centre, others = ranks("hop=4", graph=str(star), max_gap="1")
    assert (centre.ranks, others.ranks) == ((0,), (1, 2, 3))
    assert centre.peak_bytes - others.peak_bytes == (3 - 1) * 2 * bytes_of_parameters()


def test_a_server_has_parameters_states_and_every_worker_s_gradients() -> None:
    server, worker = ranks("parameter-server=5")
    assert (len(server.ranks), len(worker.ranks)) == (1, 4)
    size = pytest.approx(bytes_of_parameters(), rel=1e-3)  # but for a counter for each parameter
    assert server.by_category["parameter"] == size
    assert server.by_category["optimizer_state"] / 2 == size  # AdamW's
    assert server.by_category["gradient"] / 4 == size
    assert "activation" not in server.by_category
    assert server.action == "optimizer"


def test_two_servers_have_half_of_it_each() -> None:
    one, _ = ranks("parameter-server=5")
    two, _ = ranks("parameter-server=6", servers="2")
    assert len(two.ranks) == 2
    assert two.peak_bytes == pytest.approx(one.peak_bytes / 2, rel=0.01)


def test_a_worker_has_a_step_without_the_optimizer_s_states() -> None:
    alone = triosim.rank_memory(gpt()).report().usage
    worker = triosim.rank_memory(gpt(), "parameter-server=5").report(4).usage
    most = {
        name: (int(a), int(b))
        for name, a, b in zip(alone.categories, alone.live.max(0), worker.live.max(0), strict=True)
    }
    assert most["optimizer_state"][1] == 0 < most["optimizer_state"][0]
    for name in ("parameter", "gradient", "activation", "input"):
        assert most[name][0] == most[name][1] > 0


def test_a_step_of_local_sgd_that_averages_has_its_parameters_twice() -> None:
    """After the update: parameters, both states and gradients, and the buffer that is reduced."""
    report = triosim.rank_memory(gpt(), "local-sgd=4").report(workspace=False)
    buffers = [item for item in report.usage.lifetimes.items if item.category == "communication"]
    assert [item.nbytes for item in buffers] == [bytes_of_parameters()]
    assert report.trace.operators[buffers[0].operator].phase == "optimizer"
    alone = usage(lifetimes(gpt()))
    assert report.peak_live >= alone.peak.live


def test_the_command_has_a_row_for_servers_and_one_for_workers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.json"
    triosim.save_trace(gpt(), path)
    options = ["-p", "parameter-server=6", "--option", "servers=2"]
    assert run(["memory", str(path), *options]) == 0
    shown = [line.split()[:1] for line in capsys.readouterr().out.splitlines()]
    assert ["0-1"] in shown
    assert ["2-5"] in shown
    assert run(["memory", str(path), *options, "--rank", "0", "--gpu", "H100"]) == 0
    assert run(["simulate", str(path), *options, "-t", "ring(6, bandwidth=1 GB/s)"]) == 0
    assert "on ranks " in capsys.readouterr().out


class Keeper(Extrapolator):
    """Rank 0 trains; the others keep half of the parameters for it, and a log of 3 MiB."""

    axis = "keeper"

    def tasks(self, rank: int) -> TaskStream:
        if rank == 0:
            yield from self.loop(rank).step()
        yield Iteration()

    def memory_footprint(self, rank: int) -> MemoryFootprint:
        if rank == 0:
            return MemoryFootprint()
        return MemoryFootprint(trains=False, updates=False, share=0.5, buffers=(("log", "communication", 3 * 2.0**20),))


def test_a_plug_in_says_what_its_ranks_hold() -> None:
    memory = triosim.rank_memory(gpt(), {Keeper: 3})  # type: ignore[dict-item]
    trains, keeps = memory.ranks
    assert (len(trains.ranks), len(keeps.ranks)) == (1, 2)
    assert trains.peak_bytes == ranks("single")[0].peak_bytes
    assert keeps.by_category["parameter"] == pytest.approx(bytes_of_parameters() / 2, rel=1e-3)
    assert keeps.by_category["communication"] == 3 * 2**20
    assert sorted(keeps.by_category) == ["communication", "parameter"]
    with pytest.raises(OptionError, match="rank 2 runs no operator"):
        memory.report(2)
