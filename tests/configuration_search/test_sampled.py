"""Search by a sampler: what it finds, how long it goes on, and that the same seed finds the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import triosim
from tests.search_spaces import GPT
from triosim.cli import run
from triosim.errors import OptionError, TriosimError

pytest.importorskip("optuna")
pytest.importorskip("cmaes")

RUN: dict[str, Any] = {"gpus": 4, "topology": "dgx-h100", "global_batch_size": 16, "seq": 128}
LISTED = {"tp": [1, 2], "pp": [1, 2], "micro_batch_size": [1, 2, 4]}
MIXED = {**LISTED, "bucket_size": "100 KB..20 MB"}


def sampled(vary: dict[str, Any] = MIXED, **options: Any) -> dict[str, Any]:
    found = triosim.search(GPT, vary=vary, **{"sampler": "tpe", "budget": "25", **RUN, **options}).to_dict()
    return {**found, "seconds": 0}


@pytest.mark.parametrize("sampler", ["tpe", "cma-es"])
def test_a_sampler_finds_what_an_exact_search_finds_where_it_may_try_all_points(sampler: str) -> None:
    exact = triosim.search(GPT, vary=LISTED, **RUN).to_dict()
    found = sampled(LISTED, sampler=sampler, budget="100")
    assert found["best"] == exact["best"]
    assert found["out_of_memory"] + found["excluded_by_bound"] + found["simulated"] == 12  # each once, and no more
    assert (found["certificate"], found["gap"], found["left"]) == ("none", None, 0)


@pytest.mark.parametrize("sampler", ["tpe", "cma-es"])
def test_the_same_seed_finds_the_same(sampler: str) -> None:
    first = sampled(sampler=sampler, seed=3)
    assert first == sampled(sampler=sampler, seed=3)
    assert first["top"] != sampled(sampler=sampler, seed=4)["top"]


def test_a_budget_is_how_many_valid_points_are_tried_at_most() -> None:
    found = sampled(budget="7")
    assert found["simulated"] + found["excluded_by_bound"] + found["out_of_memory"] == 7


def test_a_budget_may_be_a_time() -> None:
    assert sampled(budget="1 ms")["points"] < 5


def test_intervals_are_drawn_within_their_ends() -> None:
    sizes = [one["settings"]["bucket_size"] for one in sampled(top=25)["top"]]
    assert len({*sizes}) > 3
    assert all(100e3 <= size <= 20e6 for size in sizes)


def test_an_option_of_a_part_may_vary() -> None:
    found = sampled({"dp": [4], "data_parallel": ["fsdp"], "option.prefetch": "1..3"}, budget="3")
    prefetches = {one["settings"]["option.prefetch"] for one in found["top"]}
    assert prefetches == {1, 2, 3}
    assert "--option prefetch=" in found["best"]["command"]


def test_several_objectives_are_weighed_by_tpe_alone() -> None:
    found = sampled(objective="step-time,memory-headroom")
    assert found["objectives"] == ["step-time", "memory-headroom"]
    with pytest.raises(OptionError, match="--sampler: 'cma-es' has one objective"):
        sampled(sampler="cma-es", objective="step-time,memory-headroom")


def test_a_study_goes_on_as_if_it_had_not_ended(tmp_path: Path) -> None:
    path = str(tmp_path / "study.db")
    sampled(study=path, budget="10")
    assert sampled(study=path, budget="25") == sampled(budget="25")
    shown = tmp_path / "shown.json"
    assert run(["search", "--show", path, "--output", str(shown), "--quiet"]) == 0
    assert json.loads(shown.read_text())["best"]["settings"] == sampled(budget="25")["best"]["settings"]


def test_several_jobs_try_as_many_points() -> None:
    found = sampled(jobs=3, budget="20")
    assert found["simulated"] + found["excluded_by_bound"] + found["out_of_memory"] == 20


def test_points_that_do_not_fit_are_not_timed() -> None:
    found = triosim.search("llama3-8b(layers=64)", vary={"dp": [2]}, sampler="tpe", **{**RUN, "gpus": 2})
    assert found.best is None
    assert "no point fits" in str(found)


DIMENSIONS = {
    "topology": "Ring(2)_Switch(4)",
    "bandwidth": ["100 GB/s", "25 GB/s"],
    "price": {"link": [1, 4], "switch": [2, 6]},
}


def test_a_network_of_dimensions_is_arranged_anew_within_its_budget() -> None:
    """Of 8 GPUs in two dimensions there are four shapes; budgets exclude what is dearer."""
    run = {**RUN, "gpus": 8, "topology": DIMENSIONS, "vary": {"dp": [8]}, "vary_topology": ["dims"], "top": 30}
    every = triosim.search(GPT, objective="step-time,network-price", **run).to_dict()
    assert every["points"] == 4 * 3 * 3
    shapes = {one["settings"]["topology.shape"] for one in every["top"]}
    assert shapes <= {"1x8", "2x4", "4x2", "8x1"}
    prices = sorted(one["network_price"] for one in every["top"])
    cheap = triosim.search(GPT, network_budget=prices[0], **run).to_dict()
    assert {one["network_price"] for one in cheap["top"]} == {prices[0]}
    assert cheap["invalid"]["price"] > 0
    best = cheap["best"]
    words = best["command"].split("'")
    topology = next(word for word in words if "bandwidth=" in word)
    assert triosim.Topology.load(topology).dimensions[0].size == int(best["settings"]["topology.shape"].split("x")[0])


def test_keys_of_a_topology_vary() -> None:
    run = {**RUN, "gpus": 16, "topology": "dgx-h100", "vary": {"dp": [16]}}
    vary = ["inter_node.bandwidth=10 GB/s..100 GB/s"]
    found = triosim.search(GPT, vary_topology=vary, sampler="tpe", budget="8", top=8, **run).to_dict()
    by_rate = sorted((float(one["settings"]["topology.inter_node.bandwidth"].split()[0]), one) for one in found["top"])
    assert by_rate[0][1]["step_time_s"] > by_rate[-1][1]["step_time_s"]
    assert "dgx-h100(inter_node={bandwidth: " in found["best"]["command"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"budget": "many"}, "--budget: 'many' is neither a number of points nor a time"),
        ({"budget": "0"}, "--budget: '0' is not from 1 to 1e9 points"),
        ({"sampler": "grid"}, "--sampler: 'grid' is not known"),
        ({"sampler": None, "budget": "5"}, "--budget: has no effect without a sampler; add --sampler tpe"),
        ({"sampler": None, "seed": 0}, "--seed: has no effect without a sampler; add --sampler tpe"),
        ({"screen": "analytical"}, "--screen: a sampler simulates what it draws"),
        ({"vary": {"tp": [3]}}, "no point that was drawn is valid: 1 break the rule 'gpus'"),
        ({"network_budget": 5}, "--network-budget: the topology has no prices"),
        ({"vary_topology": ["dims"]}, "the topology has no dimensions for 'dims'"),
        ({"vary_topology": ["bandwidth"]}, "'bandwidth' is not a key and values"),
        ({"vary_topology": ["bandwith=1 GB/s"]}, "bandwith: unknown key"),
        ({"vary_topology": ["name.2=5"]}, "there is no dimension 2"),
        ({"topology": None, "vary_topology": ["bandwidth=1 GB/s"]}, "there is no topology to vary"),
    ],
)
def test_what_is_wrong_is_one_line(options: dict[str, Any], said: str) -> None:
    with pytest.raises(TriosimError) as error:
        triosim.search(**{"trace": GPT, "vary": MIXED, "sampler": "tpe", **RUN, **options})
    assert said in str(error.value)
    assert "\n" not in str(error.value)
