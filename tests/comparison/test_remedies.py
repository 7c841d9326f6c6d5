"""What makes a step fit that does not: it fits, it was simulated, and nothing is said where nothing helps or is needed."""

from __future__ import annotations

import pytest

import triosim
from triosim.cli import run
from triosim.comparison.remedies import Remedies, Remedy, remedies, remedies_config
from triosim.config import RunConfig
from triosim.models import GPT
from triosim.reports.terminal.comparison_table import render_remedies
from triosim.reports.terminal.tables import plain_text
from triosim.trace import Trace


def gpt(layers: int, hidden: int = 2048) -> Trace:
    model = GPT(layers=layers, hidden=hidden, heads=16, vocab=1024, sequence=512)
    return triosim.describe(model, batch=1, dtype="fp16", optimizer="master-adamw", gpu="V100-SXM2-16GB")


NODE = {
    "topology": "switch",
    "gpus": 4,
    "bandwidth": "100 GB/s",
    "host": {"bandwidth": "12 GB/s"},
    "host_memory": {"capacity": "500 GB", "bandwidth": "100 GB/s"},
}


def test_each_remedy_is_a_step_that_fits_and_takes_what_it_says() -> None:
    trace = gpt(24)  # 1.2 billion parameters: 19 GB in mixed precision
    assert not triosim.rank_memory(trace, "ddp", gpus=4).fits
    found = remedies(trace, "ddp", gpus=4, topology=NODE)
    assert [one.step_time_s for one in found] == sorted(one.step_time_s for one in found)
    shown = {one.shown for one in found}
    assert {"--parallel zero2", "--parallel fsdp", "--offload optimizer=host"} <= shown
    assert "--recompute full" not in shown  # parameters and states are too large by themselves
    for one in found:
        options = {"parallel": "ddp", **one.options}
        result = triosim.simulate(trace, gpus=4, topology=NODE, **options)
        assert result.memory is not None
        assert result.memory.fits
        assert (result.step_time_s, result.memory.fullest.peak_bytes) == (one.step_time_s, one.peak_bytes)


def test_the_same_batch_in_smaller_micro_batches() -> None:
    """The default of a pipeline is as many micro-batches as it has stages, which may be too large."""
    step = {"seq": 4096, "layers": 8, "gpu": "A100-SXM-40GB", "gpus": 2}
    found = remedies("llama3-8b", "pp=2", global_batch_size=16, **step)
    assert "--micro-batch-size 1" in {one.shown for one in found}
    small = next(one for one in found if one.shown == "--micro-batch-size 1")
    result = triosim.simulate("llama3-8b", "pp=2", global_batch_size=16, micro_batch_size=1, **step)
    assert (result.step_time_s, result.data.global_batch_size) == (small.step_time_s, 16)
    found = remedies("llama3-8b", "pp=2", micro_batch_size=8, **step)
    assert "--micro-batch-size 1 --micro-batches 16" in {one.shown for one in found}


def test_changes_are_combined_where_none_is_enough_alone() -> None:
    trace = gpt(96)  # 4.8 billion: 10 GB of parameters, 10 of gradients, 58 of states
    found = remedies(trace, "ddp", gpus=4, topology=NODE)
    assert found
    assert all(len(one.options) > 1 for one in found)
    assert all("offload" in one.options for one in found)


def test_what_a_step_that_needs_less_rules_out_is_not_planned() -> None:
    """Recomputed as a whole the parameters, gradients and states are too large, so they are recomputed in part."""
    tried: list[str] = []
    config = RunConfig.of(parallel="ddp", gpus=4, topology=NODE)
    found = remedies_config(gpt(96), config, tried.append).found
    assert "--recompute full" in tried
    assert "--recompute selective" not in tried
    simulated = [one.removesuffix(": simulated") for one in tried if one.endswith(": simulated")]
    assert set(simulated) == {one.shown for one in found}
    assert tried.index(f"{simulated[0]}: simulated") > max(map(tried.index, simulated))  # all memory comes first


def test_of_many_steps_that_fit_the_few_with_the_least_bounds_are_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    every = remedies(gpt(24), "ddp", gpus=4, topology=NODE)
    monkeypatch.setattr("triosim.comparison.remedies.MOST_SIMULATED", 2)
    few = remedies(gpt(24), "ddp", gpus=4, topology=NODE)
    assert len(few) == 2 < len(every)
    assert {one.shown for one in few} <= {one.shown for one in every}


def test_a_topology_without_known_hosts_offers_no_offload() -> None:
    bare = {"topology": "switch", "gpus": 4, "bandwidth": "100 GB/s"}
    found = remedies(gpt(24), "ddp", gpus=4, topology=bare)
    assert found
    assert not any("offload" in one.options for one in found)
    assert remedies(gpt(96), "ddp", gpus=4, topology=bare) == ()


def test_the_command_shows_what_would_fit(capsys: pytest.CaptureFixture[str]) -> None:
    model = ["simulate", "llama-3.1-8b", "--seq", "1024", "--layers", "8", "--gpu", "L4"]
    assert run([*model, "-p", "ddp=2", "-t", "l4-pcie(gpus=8, host_memory={capacity: 1 TB, bandwidth: 100 GB/s})"]) == 0
    printed = capsys.readouterr().out
    assert "ranks 0-1 do not fit" in printed
    assert "It fits with" in printed
    assert "--offload optimizer=host" in printed
    assert run([*model, "-p", "fsdp=8"]) == 0
    assert "It fits with" not in capsys.readouterr().out


def test_with_less_outside_of_the_gpu_a_combination_is_found_beside_a_single_change() -> None:
    """All three offloads are enough, and hold three times as much on the host as two with recomputation."""
    found = remedies("llama3-70b", "fsdp", gpus=8, gpu="H100")
    single = next(one for one in found if len(one.options) == 1)
    recomputed = next(one for one in found if one.options.get("recompute") == "full")
    assert recomputed.outside_bytes["host"] < single.outside_bytes["host"] / 3
    assert len(found) <= 6
    for one in found:
        others = [other for other in found if other.step_time_s < one.step_time_s]
        assert all(other.outside_bytes["host"] > one.outside_bytes["host"] for other in others)


def test_where_the_time_is_up_one_change_was_tried_and_the_command_that_goes_on_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first one is tried whatever it takes: what needs least memory."""
    monkeypatch.setattr("triosim.comparison.remedies.MOST_SECONDS", 0.0)
    monkeypatch.setattr("triosim.reports.terminal.progress.PATIENCE", 0.0)
    assert run(["simulate", "llama3-70b", "--gpus", "8", "--gpu", "H100", "-p", "fsdp"]) == 0
    out, err = capsys.readouterr()
    said = " ".join(out.split())
    assert "not all that may fit was tried in the time that there is: the one that was tried does not fit" in said
    assert "looking for what fits, for about 0 s" in err  # though it is no terminal
    command = next(line for line in out.splitlines() if line.startswith("triosim search llama3-70b"))
    assert "--vary recompute=none,selective,full --vary offload=none,optimizer=host," in command


def test_the_first_change_that_fits_is_simulated_whatever_it_takes() -> None:
    model = GPT(layers=4, hidden=2048, heads=16, vocab=1024, sequence=512)
    trace = triosim.describe(model, batch=96, dtype="fp16", optimizer="sgd", gpu="V100-SXM2-16GB")
    config = RunConfig.of(parallel="ddp", gpus=4, topology=NODE)
    limited, whole = remedies_config(trace, config, seconds=0.0), remedies_config(trace, config)
    assert (limited.stopped, limited.tried) == (True, 1)
    assert [one.shown for one in limited.found] == ["--recompute full"]
    assert not whole.stopped
    assert whole.tried > 1
    step = triosim.simulate(trace, "ddp", gpus=4, topology=NODE, recompute="full").step_time_s
    assert limited.found[0].step_time_s == step


def test_what_fits_and_was_not_simulated_for_lack_of_time_is_named() -> None:
    one = Remedy({"recompute": "full"}, 1.25, 1, {})
    searched = Remedies((one,), 3, stopped=True, not_simulated=("--parallel zero2",))
    notes = [plain_text(part) for part in render_remedies(searched, 1.0)[1:]]
    assert "it also fits with --parallel zero2, not simulated for lack of time" in " ".join(notes[0].split())


def test_the_command_says_that_nothing_fits_or_can_be_tried(capsys: pytest.CaptureFixture[str]) -> None:
    def said(*words: str) -> str:
        assert run(["simulate", "llama3-70b", "--gpu", "A100-SXM-40GB", *words]) == 0
        return " ".join(capsys.readouterr().out.split())

    alone = ("-t", "switch(2, bandwidth=100 GB/s)")
    assert "none of the 2 changes that were tried fits" in said("-p", "fsdp=2", *alone)
    left = said("-p", "fsdp=2", "--recompute", "full", *alone)
    assert "no other recomputation, sharding, micro-batches or offload can be tried: it needs more GPUs" in left


def test_it_is_looked_for_on_many_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", "llama3-8b", "--gpus", "1024", "--gpu", "A100-SXM-40GB", "-p", "ddp"]) == 0
    assert "--parallel fsdp" in capsys.readouterr().out.partition("It fits with")[2]


def test_a_step_that_takes_no_longer_is_said_to_take_as_long() -> None:
    found = Remedies((Remedy({"parallel": "zero1"}, 0.9999, 1, {}), Remedy({"recompute": "full"}, 1.25, 1, {})), 2)
    table = plain_text(render_remedies(found, 1.0)[0])
    assert "as long" in table
    assert "+25%" in table
