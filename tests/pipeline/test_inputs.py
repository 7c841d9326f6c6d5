"""A result holds what it was made from, so that the same run can be made again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import traces

import triosim
from triosim.cli import run
from triosim.compute.compute_model import ComputeModel, Estimates
from triosim.errors import OptionError, SimulationError
from triosim.networks import Link, Node, Topology
from triosim.trace import Operator

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
VGG = EXAMPLES / "traces" / "vgg13_a100_fake.json.gz"


def test_a_result_is_made_again_from_its_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, again = tmp_path / "first.json", tmp_path / "again.json"
    options = ["-p", "dp=2,tp=2", "--tp-style", "megatron", "--host-overhead", "5 us", "--slow-gpus", "1=1.5"]
    assert run(["simulate", str(VGG), *options, "-o", str(first), "--quiet"]) == 0
    monkeypatch.chdir(tmp_path)
    assert run(["simulate", "--config", str(first), "-o", str(again), "--quiet"]) == 0
    one, other = (json.loads(path.read_text()) for path in (first, again))
    assert one == other


def test_the_config_of_a_result_has_every_option_by_name() -> None:
    config = triosim.simulate(VGG, "ddp=2", bucket_size="10 MB").inputs["config"]
    assert config["trace"] == str(VGG)
    assert config["parallel"] == "ddp=2"
    assert config["bucket_size"] == 10e6  # bytes
    assert config["network"] == "packet"  # the defaults too, which another version may change


def test_a_result_of_before_there_were_configs_cannot_be_made_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = tmp_path / "old.json"
    values = triosim.simulate(VGG).to_dict()
    values["inputs"]["options"] = values["inputs"].pop("config")
    old.write_text(json.dumps(values))
    assert run(["simulate", "--config", str(old)]) == 2
    assert "the result has no configuration; simulate it again with this version" in capsys.readouterr().err
    assert triosim.Result.load(old).title == "vgg13, single on 1 A100-SXM-80GB"


def test_an_option_that_is_none_is_named_with_the_nearest() -> None:
    with pytest.raises(OptionError, match="there is no option 'bucketsize'; did you mean 'bucket_size'"):
        triosim.simulate(VGG, "ddp=2", bucketsize="10 MB")


LINKS = [Link("a", "gpu0", "gpu1", 25e9, 1e-6), Link("b", "gpu1", "gpu0", 50e9)]


@pytest.mark.parametrize(
    "topology",
    [
        Topology.load("dgx-h100", gpus=16),
        Topology.load("mesh(4x2, bandwidth=65 GB/s)"),
        Topology.load("Ring(2, bandwidth=100 GB/s)_Switch(2, bandwidth=25 GB/s)"),
        Topology.load(EXAMPLES / "topologies" / "asymmetric.yaml"),
        Topology.from_dict({"preset": "dgx-a100", "slow_gpus": {1: 1.5}}),
        Topology("two", [Node("gpu0", "gpu"), Node("gpu1", "gpu")], LINKS),
        Topology("two", [Node("gpu1", "gpu"), Node("gpu0", "gpu")], LINKS).with_links(
            lambda link: replace(link, latency=2.0)
        ),
    ],
    ids=lambda topology: topology.name,
)
def test_a_topology_that_is_given_as_an_object_is_in_the_config(topology: Topology, tmp_path: Path) -> None:
    first = triosim.simulate(VGG, "ddp=2", topology=topology)
    first.save(tmp_path / "first.json")
    assert run(["simulate", "--config", str(tmp_path / "first.json"), "-o", str(tmp_path / "again.json"), "-q"]) == 0
    one, other = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("first", "again"))
    assert one["inputs"].pop("config") == other["inputs"].pop("config")
    assert one == other


def test_of_a_topology_that_no_file_can_hold_the_config_has_the_name_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slowed = Topology.load("mesh(2x2, bandwidth=65 GB/s)").with_links(lambda link: replace(link, latency=1e-3))
    result, again = triosim.simulate(VGG, "ddp", topology=slowed), tmp_path / "again.json"
    result.save(again)
    assert run(["simulate", "--config", str(again), "-q"]) == 2
    assert "topology: 'mesh 2x2' was made in Python, so that the configuration has no more" in capsys.readouterr().err
    assert run(["simulate", "--config", str(again), "-t", "switch(4, bandwidth=65 GB/s)", "-q"]) == 0


def test_a_batch_that_an_option_changes_is_noted_and_a_described_model_has_no_trace() -> None:
    vgg = triosim.simulate(VGG, "ddp=2", micro_batch_size=4)
    assert "--micro-batch-size makes a replica's batch 4 samples, not the trace's 128" in vgg.notes
    described = triosim.simulate("llama3.2-1b", "ddp=2", layers=1, seq=64, host_overhead="trace")
    assert "global batch  2 samples (micro-batches of 1)" in str(described)
    assert "the described step has no host times: launches cost nothing" in described.notes
    assert not [note for note in described.notes if "micro-batch-size" in note or "the trace" in note]


def test_a_result_and_the_package_are_short_to_look_at() -> None:
    assert len(repr(triosim.simulate(VGG)).splitlines()) == 2
    assert len(repr(triosim.load_trace(VGG))) < 100
    assert {*dir(triosim)} == {*triosim.__all__, "__version__"}
    assert triosim.simulate is import_module("triosim.simulation").simulate


@pytest.mark.parametrize(
    ("topology", "said"),
    [
        (
            {"topology": "ring", "gpus": 4, "bandwidth": 50, "latency": 1e-6},
            "bandwidth 50 has no unit and is read as 50 B/s; write one, such as '50 GB/s'",
        ),
        (
            {"topology": "switch", "gpus": 4, "bandwidth": "50 GB/s", "latency": 500},
            "latency 500 has no unit and is read as 500 s; write one, such as '500 ns'",
        ),
        (
            {"preset": "dgx-h100", "inter_node": {"bandwidth": 400, "latency": 1e-6}, "nodes": 2},
            "bandwidth 400 has no unit",
        ),
    ],
)
def test_a_number_of_a_mapping_without_a_unit_that_makes_a_link_slow_is_noted(topology: Any, said: str) -> None:
    notes = triosim.simulate(traces.mlp(), "ddp=4", topology=topology).notes
    assert [note for note in notes if said in note]


@pytest.mark.parametrize(
    "topology",
    [
        "ring(4, bandwidth=50e9, latency=1e-6)",
        "ring(4, bandwidth=50 B/s, latency=1 s)",
        "switch(4, bandwidth=400 Gbit/s)",
        {"topology": ["Ring"], "npus_count": [4], "bandwidth": [50.0], "latency": [500.0]},  # ASTRA-sim's GB/s and ns
    ],
)
def test_a_unit_that_is_said_or_plain_bytes_per_second_draw_no_note(topology: Any) -> None:
    notes = triosim.simulate(traces.mlp(), "ddp=4", topology=topology).notes
    assert not [note for note in notes if "has no unit" in note]


def test_a_compute_model_that_knows_no_operator_is_noted() -> None:
    class Silent(ComputeModel):
        def estimate(self, operators: Sequence[Operator], gpu: str) -> Estimates:
            return Estimates.unknown(len(operators), "silent")

    said = "Silent estimates no operator of this step: auto's predictions are used"
    found = triosim.simulate(VGG, batch_size=64, compute_model=Silent)
    assert [note for note in found.notes if note.endswith(said)]
    described = triosim.simulate("vgg16", compute_model=Silent)
    assert described.step_time_s == triosim.simulate("vgg16").step_time_s
    assert [note for note in described.notes if note.endswith(said)]
    assert not [note for note in triosim.simulate(VGG, compute_model=Silent).notes if said in note]  # nobody asks it


def test_an_empty_path_or_none_at_all_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("simulate", "show", "describe"):
        assert run([command, ""]) == 2
        assert " is empty; give " in capsys.readouterr().err
    for wrong, said in ((3, "trace: 3 is not a path"), ("", "trace: the path is empty")):
        with pytest.raises(OptionError, match=said):
            triosim.load_trace(wrong)  # type: ignore[arg-type]


def test_memory_refuses_what_it_does_not_depend_on() -> None:
    with pytest.raises(OptionError, match="network: has no effect in memory; leave it out"):
        triosim.rank_memory(VGG, "ddp=2", network="analytical")
    assert triosim.rank_memory(VGG, "ddp=2", gpu="H100", fold=False)


def test_a_name_that_is_no_model_is_answered_in_a_few_words(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("describe", "simulate"):
        assert run([command, "nope"]) == 2
        assert "more, which 'triosim describe --list' shows" in capsys.readouterr().err
    assert run(["describe", "--list"]) == 0
    assert {"gpt2", "llama3-8b", "vgg16"} <= {*capsys.readouterr().out.split()}
    assert run(["show", "llama3-8b"]) == 2
    assert "is the name of a model, not a trace; write one: triosim describe llama3-8b" in capsys.readouterr().err


def test_a_step_as_on_no_machine_is_no_result() -> None:
    """No operator takes too long, and together with a batch of ten times the samples they do."""
    trace = traces.mlp()
    long = replace(
        trace, operators=tuple([replace(one, seconds=9e8 / len(trace.operators)) for one in trace.operators])
    )
    assert triosim.simulate(long).step_time_s == pytest.approx(9e8)
    with pytest.raises(SimulationError, match="as on no machine; look at the operator times"):
        triosim.simulate(long, batch_size=10 * trace.batch_size)
