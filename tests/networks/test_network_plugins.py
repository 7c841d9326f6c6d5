"""A network and a collective algorithm from outside the package: one file each, which no other file has to name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from triosim import plugins
from triosim.cli import run
from triosim.errors import PluginError

ROOT = Path(__file__).resolve().parents[2]
VGG = ROOT / "examples" / "traces" / "vgg13_a100_fake.json.gz"
SWITCH = "switch(4, bandwidth=100 GB/s, latency=1 us)"

#: A network that uses, for purposes of its own, every name that the base class once had.
NETWORK = '''
from triosim.config import Option
from triosim.networks import Network


class Mine(Network):
    """Every transfer takes an overhead and its bytes at one speed."""

    options = (Option("overhead", "time", "2 us", "seconds of every transfer"),)

    def __init__(self, env, topology, *, overhead=2e-6, **options):
        super().__init__(env, topology, **options)
        self.overhead = overhead
        self.algorithm = self.form = self.record = self.contention = self.quotient = "mine"
        self.flows = self.rates = self.calibrated = None
        self._laid_out = self._kept = self._calibrated = self._lowering = 7

    def transfer(self, source, destination, nbytes):
        return self.env.timeout(self._send(nbytes))

    def _send(self, nbytes):
        return self.overhead + nbytes / 50e9

    def _plan(self): raise AssertionError
    _once = _late = _check_whole = edges = fold = figures = bytes_by_link = set_bandwidth = _plan
'''

ALGORITHM = '''
from triosim.config import Option
from triosim.networks import CollectiveAlgorithm, Transfer


class Star(CollectiveAlgorithm):
    """Everything to one rank and back, whatever the collective, for as many rounds as one asks for."""

    options = (Option("rounds", "whole", 1, "times that it is done"),)

    def __init__(self, rounds=1):
        self.rounds = rounds
        self.steps = self.pipeline = self.sent = None

    def transfers(self, kind, group, nbytes, topology, *, root=None, shares=None):
        centre, *others = group
        after = ()
        for number in range(self.rounds):
            first = 2 * len(others) * number
            for rank in others:
                yield Transfer(rank, centre, 0, nbytes, "reduce", after)
            arrived = tuple(range(first, first + len(others)))
            for rank in others:
                yield Transfer(centre, rank, 0, nbytes, "copy", arrived)
            after = tuple(range(first + len(others), first + 2 * len(others)))
'''


def simulated(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run(["simulate", str(VGG), "-t", SWITCH, "--format", "json", *arguments]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.fixture
def network(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(NETWORK)
    assert len(NETWORK.splitlines()) <= 60
    return f"{tmp_path / 'mine.py'}:Mine"


@pytest.fixture
def algorithm(tmp_path: Path) -> str:
    (tmp_path / "star.py").write_text(ALGORITHM)
    assert len(ALGORITHM.splitlines()) <= 60
    return f"{tmp_path / 'star.py'}:Star"


@pytest.mark.parametrize("parallel", ["tp=4", "ddp", "dp=2,pp=2", "fsdp"])
def test_a_network_of_ones_own_runs_under_every_name_it_chooses(
    capsys: pytest.CaptureFixture[str], network: str, parallel: str
) -> None:
    quick, slow = (
        simulated(capsys, "-p", parallel, "-n", "4", "--network", network, "--option", f"overhead={overhead}")
        for overhead in ("1 us", "9 ms")
    )
    assert slow["step_time_s"] > quick["step_time_s"] + 5e-3
    assert not [note for note in quick["notes"] if "effect" in note or "link" in note]
    assert quick["links"] == []
    assert quick["network_figures"] is None


def test_a_network_of_ones_own_takes_the_form_of_collectives_and_says_what_it_cannot_tell(
    capsys: pytest.CaptureFixture[str], network: str
) -> None:
    common = ("-p", "tp=4", "--network", network, "--option", "overhead=1 ms")
    pipelined, steps = (simulated(capsys, *common, "--collective-form", form) for form in ("pipelined", "steps"))
    assert steps["step_time_s"] != pipelined["step_time_s"]
    assert not [note for note in steps["notes"] if "no effect" in note]
    told = simulated(capsys, *common, "--links")["notes"]
    assert "Mine simulates no links: the bytes of each link are unknown" in told


def test_faults_of_links_and_wrong_options_are_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], network: str
) -> None:
    common = ["simulate", str(VGG), "-t", SWITCH, "-p", "tp=4", "--network", network]
    assert run([*common, "--event", "at=0.1s,from=gpu0,to=switch0,fails=true"]) == 2
    assert "Mine cannot change links while it runs" in capsys.readouterr().err
    assert run([*common, "--option", "overhead=fast"]) == 2
    assert "--option overhead: " in capsys.readouterr().err
    assert run([*common, "--option", "overhed=1 us"]) == 2
    assert "did you mean 'overhead'" in capsys.readouterr().err


def test_an_algorithm_in_phases_that_lacks_its_grid_is_refused_by_the_name_of_the_method(tmp_path: Path) -> None:
    base = "from triosim.networks.collectives.phased.phases import PhasedAlgorithm"
    (tmp_path / "mine.py").write_text(f"{base}\nclass Mine(PhasedAlgorithm): pass")
    with pytest.raises(PluginError, match=r"mine\.py:Mine: does not define grid"):
        plugins.load("collective_algorithms", f"{tmp_path / 'mine.py'}:Mine")


@pytest.mark.parametrize("form", ["pipelined", "steps"])
@pytest.mark.parametrize("parallel", ["tp=4", "ddp"])
def test_a_collective_algorithm_of_ones_own_runs_with_its_option(
    capsys: pytest.CaptureFixture[str], algorithm: str, parallel: str, form: str
) -> None:
    common = ("-p", parallel, "-n", "4", "--collective", algorithm, "--collective-form", form, "--option")
    once, thrice = (simulated(capsys, *common, f"rounds={rounds}") for rounds in (1, 3))
    assert thrice["step_time_s"] > once["step_time_s"]
    assert not [note for note in once["notes"] if "effect" in note]


def test_the_memory_command_does_not_mind_a_network_in_a_configuration(
    capsys: pytest.CaptureFixture[str], network: str, tmp_path: Path
) -> None:
    saved = tmp_path / "run.yaml"
    assert (
        run(["simulate", str(VGG), "-t", SWITCH, "-p", "tp=4", "--network", network, "--save-config", str(saved)]) == 0
    )
    capsys.readouterr()
    assert run(["memory", "--config", str(saved), "--gpu", "A100-SXM4-80GB"]) == 0
    assert "no effect" not in capsys.readouterr().out
