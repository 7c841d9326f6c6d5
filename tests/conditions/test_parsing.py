"""What files, options and Python may say of conditions, what they may not, and notes on what had no effect."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from small_runs import SWITCH, two_layers

import triosim
from triosim.conditions.parsing import parse_factors, ranks_of
from triosim.errors import OptionError, TriosimError
from triosim.networks import Topology
from triosim.pipeline.system import check_sections


def test_a_file_and_an_option_say_the_same(tmp_path: Path) -> None:
    path = tmp_path / "slow.yaml"
    path.write_text(
        "topology: switch\ngpus: 4\nbandwidth: 100 GB/s\ncompute_slowdown: {all_reduce: 1.3}\ncollective_slowdown: 1.1\n"
        "slow_gpus: {0: 1.2, 2-3: 1.5}\nstragglers: {distribution: lognormal, spread: 0.1, seed: 3}\n"
        "events: [{at: 1 ms, gpu: 1, slowdown: 2}, {at: 2 ms, from: gpu0, to: switch0, bandwidth: 1 GB/s}]\n"
    )
    said: dict[str, Any] = {
        "compute_slowdown": "all_reduce=1.3",
        "collective_slowdown": "1.1",
        "slow_gpus": ["0=1.2", "2-3=1.5"],
        "stragglers": "lognormal,spread=0.1,seed=3",
        "events": ["at=1ms,gpu=1,slowdown=2", "at=2 ms,from=gpu0,to=switch0,bandwidth=1 GB/s"],
    }
    by_file = triosim.simulate(two_layers(), "ddp=4", topology=path)
    by_option = triosim.simulate(two_layers(), "ddp=4", topology=SWITCH, conditions=said)
    assert by_file.data.ranks == by_option.data.ranks
    assert by_file.step_time_s > triosim.simulate(two_layers(), "ddp=4", topology=SWITCH).step_time_s


def test_ranks_and_factors_as_text() -> None:
    assert ranks_of("0-2, 7") == [0, 1, 2, 7]
    assert ranks_of(3) == [3]
    assert parse_factors("1.2")["all_to_all"] == parse_factors("1.2")["send"] == 1.2
    assert "copy" not in parse_factors(1.2)
    assert parse_factors("copy=1.5,send=2") == {"copy": 1.5, "send": 2.0}


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"compute_slowdown": 0.9}, "--compute-slowdown: '0.9' is not a factor"),
        ({"compute_slowdown": "all_reduc=1.2"}, "did you mean 'all_reduce'?"),
        ({"collective_slowdown": "nan"}, "--collective-slowdown: 'nan' is not a factor"),
        ({"slow_gpus": {9: 2}}, "there is no GPU 9; name one from 0 to 3"),
        ({"slow_gpus": "2"}, "write for example '4-7=1.5'"),
        ({"slow_gpus": {"2-1": 2}}, "'2-1' is not a list of ranks"),
        ({"slow_gpus": {1: math.inf}}, "--slow-gpus: 'inf' is not a factor"),
        ({"gpu_kinds": {1: "H1000"}}, "switch 4: gpu_kinds: 1: there is no GPU 'H1000' in the catalogue"),
        ({"gpu_kinds": {1: 3}}, "3 is not a GPU"),
        ({"stragglers": "normal"}, "distribution: unknown value 'normal'"),
        ({"stragglers": "lognormal,spread=1000"}, "1000 is not a spread; it is a standard deviation of logarithms"),
        ({"stragglers": "uniform,spread=-1"}, "'-1' is not a spread"),
        ({"stragglers": "uniform,sped=1"}, "unknown key 'sped'; did you mean 'spread'?"),
        ({"stragglers": "uniform,seed=x"}, "'x' is not a seed"),
        ({"slow_links": "uniform,every=iteration"}, "unknown key 'every'; known: distribution, seed, spread"),
        ({"events": "gpu=1,slowdown=2"}, "is not an event"),
        ({"events": 5}, "5 is not a list of events"),
        ({"events": [{"at": -1, "gpu": 1, "slowdown": 2}]}, "-1 is not a time"),
        ({"events": [{"at": 1, "gpu": 1}]}, "needs either 'slowdown' or 'fails'"),
        ({"events": [{"at": 1, "gpu": "0-1", "slowdown": 2}]}, "'0-1' is not one GPU"),
        ({"events": [{"at": 1, "gpu": 1, "slowdwn": 2}]}, "did you mean 'slowdown'?"),
        ({"events": [{"at": 1, "from": "gpu0", "to": "gpu1", "bandwidth": "1 GB/s"}]}, "no link from gpu0 to gpu1"),
        ({"events": [{"at": 1, "from": "gpu0", "to": "switch0", "bandwidth": -1}]}, "-1 is not a positive bandwidth"),
        ({"event": []}, "--event: unknown key; did you mean 'events'?"),
    ],
)
def test_what_is_said_wrong(said: dict[str, Any], message: str) -> None:
    with pytest.raises(TriosimError) as error:
        triosim.simulate(two_layers(), "ddp=4", topology=SWITCH, conditions=said)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("said", "network", "note"),
    [
        ({"slow_gpus": {3: 2}}, "packet", "slow_gpus has no effect on GPU 3: the run uses 2 GPUs"),
        ({"events": "at=9999,gpu=0,slowdown=2"}, "packet", "the event at 9999 s has no effect: the run ends at"),
        (
            {"compute_slowdown": "send=1.2"},
            "packet",
            "compute_slowdown has no effect: the run has no send, only all_reduce",
        ),
        ({"slow_links": "uniform,spread=9"}, "photonic", "slow_links has no effect on optical circuits"),
    ],
)
def test_what_made_no_difference_is_said(said: dict[str, Any], network: str, note: str) -> None:
    options = {"topology": SWITCH, "network": network}
    plain = triosim.simulate(two_layers(), "ddp=2", **options)
    found = triosim.simulate(two_layers(), "ddp=2", conditions=said, **options)
    assert found.step_time_s == pytest.approx(plain.step_time_s, rel=1e-12)
    assert [one for one in found.notes if one.startswith(note)]
    assert not [one for one in found.notes if "longer in all" in one]


def test_a_file_that_says_it_wrong_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "slow.yaml"
    path.write_text("preset: dgx-h100\nslow_gpus: {1: 0.5}\n")
    with pytest.raises(TriosimError, match=r"slow.yaml:2: slow_gpus: '0.5' is not a factor"):
        check_sections(Topology.load(path))


def test_a_network_whose_links_cannot_change_says_so() -> None:
    said = {"events": ["at=1,from=gpu0,to=switch0,fails=true"]}
    with pytest.raises(OptionError, match="AnalyticalNetwork cannot change links while it runs"):
        triosim.simulate(two_layers(), "ddp=4", topology=SWITCH, network="analytical", conditions=said)
