"""Plug-ins: each example in examples/plugins does what it says, and a broken plug-in ends in one line."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal

import pytest

import triosim
from triosim import plugins
from triosim.cli import run
from triosim.errors import OptionError, PluginError

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples" / "plugins"
VGG = ROOT / "examples" / "traces" / "vgg13_a100_fake.json.gz"
SWITCH = "switch(4, bandwidth=100 GB/s, latency=1 us)"
PARAMETER_BYTES = 4 * 133_047_848


@pytest.fixture(scope="module")
def vgg() -> triosim.Trace:
    return triosim.load_trace(VGG)


def test_a_network_from_a_file_takes_its_options(vgg: triosim.Trace) -> None:
    network = f"{EXAMPLES}/alpha_beta_network.py:AlphaBetaNetwork"
    result = triosim.simulate(
        vgg,
        "dp",
        topology=SWITCH,
        network=network,
        collective_form="steps",
        options={"alpha": "3 us", "bandwidth": "50 GB/s"},
    )
    # A ring all-reduce of four ranks: six steps, each alpha and a quarter of the bytes.
    expected = 6 * (3e-6 + PARAMETER_BYTES / 4 / 50e9)
    assert result.data.ranks[0].communication_s == pytest.approx(expected, rel=1e-9)


def test_a_collective_algorithm_from_a_file_sends_all_through_its_hub(vgg: triosim.Trace) -> None:
    hub = f"{EXAMPLES}/hub_collective.py:Hub"
    result = triosim.simulate(vgg, "dp", topology=SWITCH, collective=hub, collective_form="steps")
    # Three tensors in through the hub's one link, then three out; each way over two hops of 1 us.
    expected = 2 * (3 * PARAMETER_BYTES / 100e9 + 2e-6)
    assert result.data.ranks[0].communication_s == pytest.approx(expected, rel=1e-9)


def test_a_parallelism_from_a_file_averages_once_in_so_many_steps(vgg: triosim.Trace) -> None:
    local_sgd = f"{EXAMPLES}/local_sgd.py:LocalSGD"
    result = triosim.simulate(vgg, local_sgd, topology=SWITCH, iterations=6, options={"every": "3"})
    (all_reduce,) = result.data.collectives
    assert all_reduce.kind == "all_reduce"
    assert all_reduce.count == pytest.approx(1 / 3)  # a step


def test_a_compute_model_from_a_file_scales_what_changes_shape(vgg: triosim.Trace) -> None:
    model = f"{EXAMPLES}/square_root_model.py:SquareRoot"
    whole = triosim.simulate(vgg, batch_size=vgg.batch_size, compute_model=model, host_overhead="none")
    half = triosim.simulate(vgg, batch_size=vgg.batch_size // 2, compute_model=model, host_overhead="none")
    assert whole.step_time_s == pytest.approx(vgg.seconds, rel=1e-12)
    assert math.sqrt(0.5) < half.step_time_s / whole.step_time_s < 0.75  # the optimizer stays, weights too


def test_a_trace_format_from_a_file(tmp_path: Path) -> None:
    text = tmp_path / "net.txt"
    text.write_text("# my-net batch 32\nstem, 120, 240, 51.2, 0.04\nhead, 80, 160, 0.128, 8\n")
    trace = triosim.load_trace(text, format=plugins.load("trace_formats", f"{EXAMPLES}/text_trace.py"))
    result = triosim.simulate(trace, "ddp", topology=SWITCH)
    assert result.data.ranks[0].compute_s == pytest.approx(600e-6)
    assert sum(one.bytes for one in result.data.collectives) == 8.04e6


def test_every_example_is_short() -> None:
    lengths = {path.name: len(path.read_text().splitlines()) for path in EXAMPLES.glob("*.py")}
    assert len(lengths) >= 5
    assert max(lengths.values()) < 60, lengths


def test_an_entry_point_of_another_package_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_networks.py").write_text((EXAMPLES / "alpha_beta_network.py").read_text())
    info = tmp_path / "my_networks-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-networks\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[triosim.networks]\nalpha-beta = my_networks:AlphaBetaNetwork\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert "alpha-beta" in plugins.names("networks")
    assert plugins.load("networks", "alpha-beta").__name__ == "AlphaBetaNetwork"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("import nothing_of_this_name", "cannot be imported: ModuleNotFoundError"),
        ("def broken(:", "cannot be imported: .*line 1"),
        ("import sys; sys.exit(4)", "cannot be imported: SystemExit: 4"),
        ("x = 1", "has no 'Mine'"),
        ("from typing import Any\nclass Mined: pass", "has no 'Mine'; did you mean 'Mined'"),
        ("from typing import Any\nclass Other: pass", "has no 'Mine'; known: Other$"),
        ("class Mine: pass", "has no method 'transfer'"),
        ("from triosim.networks import Network\nclass Mine(Network): pass", "does not define transfer"),
    ],
)
def test_a_broken_file_is_named_with_what_is_wrong(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(content)
    with pytest.raises(PluginError, match=said) as caught:
        plugins.load("networks", f"{path}:Mine")
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_names_that_are_nothing_are_answered_with_the_nearest() -> None:
    with pytest.raises(PluginError, match="did you mean 'packet'"):
        plugins.load("networks", "paket")
    with pytest.raises(PluginError, match="there is no such file"):
        plugins.load("networks", "nowhere.py:Mine")
    with pytest.raises(PluginError, match=r"names a file, not a class in it; write .*hub_collective.py:Class"):
        plugins.load("collective_algorithms", f"{EXAMPLES}/hub_collective.py")


def test_an_option_that_nobody_takes_is_an_error(vgg: triosim.Trace) -> None:
    with pytest.raises(OptionError, match=r"'evry'.*did you mean"):
        triosim.simulate(vgg, f"{EXAMPLES}/local_sgd.py:LocalSGD", topology=SWITCH, options={"evry": "3"})


NETWORK = """
from triosim.networks import Network
class Mine(Network):
    {body}
"""


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("def __init__(self, env, topology): pass\n    def transfer(self, s, d, n): ...", "call super().__init__"),
        (
            "def __init__(self, env): pass\n    def transfer(self, s, d, n): ...",
            "Mine: cannot be constructed: TypeError",
        ),
        (
            "def transfer(self, s, d, n): return 1.5",
            "mine.py:Mine: the network returned 1.5, which is not an event; return a SimPy event",
        ),
        ("def transfer(self, s, d, n): return n / 0", "mine.py:4 (Mine.transfer): ZeroDivisionError"),
        ("def transfer(self, s, d, n): raise SystemExit(5)", "mine.py:4 (Mine.transfer): SystemExit: 5"),
        ("def transfer(self, s, d, n): yield", "mine.py:Mine: the network returned a generator from transfer"),
        ("def __init__(self, env, topology): self.topology = topology\n    transfer = print", "call super().__init__"),
        ("def transfer(self, s, d, n): return self.env.event()", "which the network has not finished"),
    ],
)
def test_a_network_that_fails_in_a_run_ends_in_one_line(
    tmp_path: Path, vgg: triosim.Trace, body: str, said: str
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(NETWORK.format(body=body))
    with pytest.raises(triosim.TriosimError) as caught:
        triosim.simulate(vgg, "dp", topology=SWITCH, network=f"{path}:Mine", collective_form="steps")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("Estimates(np.full(n, np.inf), np.zeros(n), [''] * n)", "Mine: estimated inf for aten::randn"),
        ("Estimates(np.full(n, -1.0), np.zeros(n), [''] * n)", "Mine: estimated -1.0 for aten::randn"),
        ("Estimates(np.ones(3), np.zeros(3), [''] * 3)", "Mine: returned 3 seconds for 118 operators"),
        ("[1.0] * n", "Mine: returned a list; return Estimates"),
        ("undefined", "mine.py:7 (Mine.estimate): NameError"),
    ],
)
def test_a_compute_model_that_cannot_be_right_is_refused(
    tmp_path: Path, vgg: triosim.Trace, answer: str, said: str
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "import numpy as np\nfrom triosim.compute import ComputeModel, Estimates\n\n"
        "class Mine(ComputeModel):\n    def estimate(self, operators, gpu):\n"
        f"        n = len(operators)\n        return {answer}\n"
    )
    with pytest.raises(PluginError) as caught:
        triosim.simulate(vgg, batch_size=64, compute_model=f"{path}:Mine")
    assert said in str(caught.value)


@pytest.mark.parametrize("unknown", ["np.nan", "0.0"])
def test_what_a_compute_model_does_not_know_another_one_says(tmp_path: Path, vgg: triosim.Trace, unknown: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "import numpy as np\nfrom triosim.compute import ComputeModel, Estimates\n\n"
        "class Mine(ComputeModel):\n    def estimate(self, operators, gpu):\n"
        f"        n = len(operators)\n        return Estimates(np.full(n, {unknown}), np.zeros(n), ['mine'] * n)\n"
    )
    result = triosim.simulate(vgg, batch_size=64, compute_model=f"{path}:Mine")
    assert result.step_time_s < 0.75 * vgg.seconds
    assert "mine" not in {prediction.model for prediction in result.data.predictions}


def test_a_parallelism_without_an_axis_gets_one_by_its_name(tmp_path: Path, vgg: triosim.Trace) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from triosim.extrapolators import Extrapolator, with_hooks\nfrom triosim.extrapolators.data.dp import all_reduce\n\n"
        "class Mine(Extrapolator):\n    def transform(self, program, mesh):\n"
        "        return with_hooks(program, self.axis, all_reduce)\n"
    )
    (all_reduce,) = triosim.simulate(vgg, f"{path}:Mine", topology=SWITCH).data.collectives
    assert all_reduce.group_size == 4


def test_a_transform_that_returns_nothing_is_refused(tmp_path: Path, vgg: triosim.Trace) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from triosim.extrapolators.core.extrapolator import Extrapolator\n\n"
        "class Mine(Extrapolator):\n    def transform(self, program, mesh):\n        pass\n"
    )
    with pytest.raises(PluginError, match=r"Mine: transform\(\) returned a NoneType"):
        triosim.simulate(vgg, f"{path}:Mine", topology=SWITCH)


def test_settings_with_an_option_of_their_own_cannot_be_given_by_name(vgg: triosim.Trace) -> None:
    for name in ("record", "form", "algorithm", "env", "topology"):
        with pytest.raises(OptionError, match=f"no part of this run takes '{name}'"):
            triosim.simulate(vgg, "dp", topology=SWITCH, options={name: "1"})


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return None", "Mine: transfers() returned a NoneType; yield Transfer"),
        ("yield 'a', 'b'", "Mine: transfer 0 is a tuple; yield Transfer"),
        ("yield Transfer(0, 1, 0, float('nan'))", "Mine: transfer 0 has nan bytes"),
        ("yield Transfer(0, 1, 0, -1.0)", "Mine: transfer 0 has -1.0 bytes"),
        ("yield Transfer(2, 2, 0, 1.0)", "Mine: transfer 0 goes from rank 2 to rank 2"),
        ("yield Transfer(0, 9, 0, 1.0)", "Mine: transfer 0 goes from rank 0 to rank 9"),
        ("yield Transfer(0, 1, 0, 1.0, 'copy', (5,))", "Mine: transfer 0 waits for (5,)"),
        ("yield group[99]", "IndexError"),
    ],
)
@pytest.mark.parametrize("form", ["steps", "pipelined"])
def test_a_collective_algorithm_that_cannot_be_is_refused(
    tmp_path: Path, vgg: triosim.Trace, body: str, said: str, form: Literal["steps", "pipelined"]
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from triosim.networks import CollectiveAlgorithm, Transfer\n\nclass Mine(CollectiveAlgorithm):\n"
        f"    def transfers(self, kind, group, nbytes, topology, *, root=None, shares=None):\n        {body}\n"
    )
    with pytest.raises(PluginError) as caught:
        triosim.simulate(vgg, "dp", topology=SWITCH, collective=f"{path}:Mine", collective_form=form)
    assert said in str(caught.value)


def test_a_network_whose_transfer_fails_is_named(tmp_path: Path, vgg: triosim.Trace) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        NETWORK.format(body="def transfer(self, s, d, n): return self.env.event().fail(ValueError('net down'))")
    )
    with pytest.raises(PluginError, match=r"the network failed: .*net down"):
        triosim.simulate(vgg, "dp", topology=SWITCH, network=f"{path}:Mine")


def test_a_trace_format_is_named_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "net.txt"
    text.write_text("# my-net batch 32\nstem, 120, 240, 51.2, 0.04\nhead, 80, 160, 0.128, 8\n")
    assert run(["show", str(text), "--trace-format", str(EXAMPLES / "text_trace.py")]) == 0
    assert "my-net" in capsys.readouterr().out


def test_networks_choose_an_algorithm_unless_told_and_the_analytical_one_knows_no_steps(vgg: triosim.Trace) -> None:
    system = "Ring(4, bandwidth=10 GB/s, latency=1 us)_FC(2, bandwidth=10 GB/s, latency=1 us)"

    def step(network: str, **keys: str) -> float:
        return triosim.simulate(vgg, "dp", topology=system, network=network, **keys).step_time_s  # type: ignore[arg-type]

    for network in ("analytical", "packet"):
        assert step(network) == step(network, collective="auto")
        assert step(network) < step(network, collective="ring")
    assert step("photonic") == step("photonic", collective="ring")
    result = triosim.simulate(vgg, "dp", topology=system, network="analytical", collective_form="steps")
    assert any("--collective-form has no effect" in note for note in result.notes)
