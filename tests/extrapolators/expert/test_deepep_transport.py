"""ep over DeepEP: what is dispatched and combined, which kernels do it, their buffers, and folding."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from traces import draw, operators_of, planned

from triosim import describe, rank_memory, simulate
from triosim.errors import OptionError
from triosim.extrapolators.core.plan import ParallelPlan
from triosim.extrapolators.expert.expert_loads import LoadDistribution
from triosim.networks import Network, Topology
from triosim.tasks import AllToAll, DeepEP
from triosim.trace import Trace
from triosim.trace.formats.native import trace_json as json_format

#: Mixtral, captured: 16 tokens of 16 features in float32, each with two of four experts.
MIXTRAL = json_format.read(Path(__file__).parents[1] / "tensor" / "data" / "parts" / "mixtral.json.gz")


def experts(parallel: str, *, load: str = "balanced", **options: Any) -> ParallelPlan:
    extra = {"load": load, **options.pop("options", {})}
    return planned(MIXTRAL, parallel, options=extra, tp_style="megatron", ep_transport="deepep", **options)


def exchanges(plan: ParallelPlan, rank: int = 0) -> list[AllToAll]:
    return [task for task in draw(plan.tasks(rank), rank) if isinstance(task, AllToAll)]


def transports(plan: ParallelPlan, rank: int = 0) -> list[DeepEP]:
    found = [task.transport for task in exchanges(plan, rank)]
    assert None not in found
    return [one for one in found if one is not None]


def test_gradients_go_the_way_of_tokens_dispatched_to_experts_and_combined_from_them() -> None:
    """16 tokens of 16 values: a byte each and one scale of four bytes; combined in float32."""
    forward = [DeepEP("dispatch", 16, 20.0, 2, 4), DeepEP("combine", 16, 64.0, 2, 4)]
    assert transports(experts("dp=4,ep=4")) == forward * 2


def test_a_token_is_sent_once_to_each_rank_that_has_its_experts() -> None:
    """Four ranks of an expert each: two of them for a token. Two ranks of two: 1 - 2/4 x 1/3 of the tokens to each."""
    assert [task.nbytes for task in exchanges(experts("dp=4,ep=4"))] == pytest.approx([16 * 2 * 20, 16 * 2 * 64] * 2)
    sent = 16 * 2 * (1 - 2 / 4 * 1 / 3)
    assert [task.nbytes for task in exchanges(experts("dp=2,ep=2"))] == pytest.approx([sent * 20, sent * 64] * 2)


def test_a_token_whose_experts_are_neighbours_goes_to_few_ranks() -> None:
    """Both experts of a token are on one of two ranks; of four ranks with an expert each, two have them."""
    for parallel, ranks in (("dp=2,ep=2", 1), ("dp=4,ep=4", 2)):
        sent = [task.nbytes for task in exchanges(experts(parallel, load="consecutive"))]
        assert sent == pytest.approx([16 * ranks * 20, 16 * ranks * 64] * 2)


def test_tokens_are_dispatched_as_they_are_where_that_is_asked_for() -> None:
    plan = experts("dp=4,ep=4", options={"deepep_dispatch": "as-is", "deepep_sms": "24"})
    assert [(one.token_bytes, one.sms) for one in transports(plan)] == [(64.0, 24)] * 4


def test_without_it_nccl_carries_them() -> None:
    plan = planned(MIXTRAL, "dp=4,ep=4", options={"load": "balanced"})
    assert [task.transport for task in exchanges(plan)] == [None] * 4


@pytest.mark.parametrize(("transport", "copies"), [("nccl", 4), ("deepep", 0), ("hybridep", 0)])
def test_rows_are_copied_into_order_after_all_to_alls_alone(transport: str, copies: int) -> None:
    """DeepEP's kernels send tokens, which the layer's own permutation turns into rows."""

    def count(parallel: str) -> int:
        plan = planned(MIXTRAL, parallel, options={"load": "balanced"}, ep_transport=transport)
        return sum(one.name == "aten::index" for one in operators_of(draw(plan.tasks(0))))

    assert count("dp=4,ep=4") - count("dp=4") == copies


def test_hybridep_sends_as_deepep_does_by_its_own_kernels() -> None:
    hybrid, deepep = (
        transports(planned(MIXTRAL, "dp=4,ep=4", options={"load": "balanced"}, ep_transport=name))
        for name in ("hybridep", "deepep")
    )
    assert [one.library for one in hybrid] == ["hybridep"] * 4
    assert [replace(one, library="deepep") for one in hybrid] == deepep


def test_few_tokens_of_an_inference_pass_take_the_low_latency_kernels() -> None:
    """Which send a token to each of its experts: 32 rows."""
    few = experts("dp=4,ep=4", training=False)
    assert [one.low_latency for one in transports(few)] == [True, True]
    assert [task.nbytes for task in exchanges(few)] == pytest.approx([32 * 20, 32 * 64])
    trace = describe("mixtral-8x7b", layers=1, batch=1, sequence=256, dtype="bf16", gpu="H100")
    many = planned(trace, "dp=8,ep=8", training=False, ep_transport="deepep")
    assert [one.low_latency for one in transports(many)] == [False, False]
    hybrid = planned(MIXTRAL, "dp=4,ep=4", training=False, ep_transport="hybridep", options={"load": "balanced"})
    assert [one.low_latency for one in transports(hybrid)] == [False, False]


def test_drawn_loads_go_where_they_were_drawn_to() -> None:
    plan = experts("dp=4,ep=4", load="zipf", options={"skew": "1.5", "seed": "7"})
    rows, _ = LoadDistribution("zipf", 1.5, 7).tokens(4, 4, 32, layer=0, iteration=0)
    for rank in range(4):
        tasks = exchanges(plan, rank)
        assert [task.transport.rows for task in tasks if task.transport] == [tuple(rows.ravel())] * 4
        dispatch, combine = (task.shares for task in tasks[:2])
        assert dispatch is not None
        assert combine is not None
        for sender in range(4):
            for receiver in range(4):
                # A rank that gets r of 32 choices is as one with r/8 of four experts: a token misses it twice, or not.
                share = rows[sender, receiver] / 8
                tokens = 16 * (1 - max(0, 1 - share / 4) * max(0, 1 - share / 3))
                assert dispatch[4 * sender + receiver] == pytest.approx(tokens * 20)
                assert combine[4 * receiver + sender] == pytest.approx(tokens * 64)


def test_groups_that_limit_routing_are_read_off_the_router() -> None:
    """DeepSeek-V3: eight of 256 experts, in four of eight groups."""
    trace = describe("deepseek-v3", layers=4, batch=1, sequence=256, optimizer="none", gpu="H100")
    first, *_ = transports(planned(trace, "dp=8,ep=8", ep_transport="deepep", options={"load": "balanced"}))
    assert (first.tokens, first.top_k, first.experts, first.groups, first.kept_groups) == (256, 8, 256, 8, 4)
    assert first.token_bytes == 7168 + 7168 / 128 * 4


def test_recomputed_experts_are_dispatched_and_combined_again() -> None:
    steps = [one.step for one in transports(experts("dp=4,ep=4", recompute="full"))]
    assert steps == ["dispatch", "combine"] * 3


def test_tensor_parallel_ranks_dispatch_and_combine_the_same_tokens() -> None:
    assert [one.tokens for one in transports(experts("dp=2,ep=2,tp=2"))] == [16] * 4
    assert [one.tokens for one in transports(experts("cp=2,dp=2,ep=4"))] == [8] * 4


# ---- in a run -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mixtral() -> Trace:
    return describe("mixtral-8x7b", layers=2, batch=1, sequence=512, optimizer="none", dtype="bf16", gpu="H100")


@pytest.mark.parametrize("load", ["balanced", "zipf"])
@pytest.mark.parametrize("parallel", ["dp=16,ep=8", "fsdp=16,ep=4", "dp=8,tp=2,ep=8", "dp=2,fsdp=8,ep=8"])
def test_folding_changes_nothing(mixtral: Trace, parallel: str, load: str) -> None:
    folded, every = (
        simulate(
            mixtral, parallel, topology="dgx-h100(gpus=16)", ep_transport="deepep", options={"load": load}, fold=fold
        ).data
        for fold in (True, False)
    )
    assert folded.step_time_s == pytest.approx(every.step_time_s, rel=1e-9)
    assert [rank.communication_s for rank in folded.ranks] == pytest.approx(
        [rank.communication_s for rank in every.ranks], rel=1e-9
    )
    assert [link.bytes for link in folded.links] == pytest.approx([link.bytes for link in every.links], rel=1e-9)


def test_over_nodes_it_is_faster_than_all_to_alls() -> None:
    """With many tokens: those with two experts on the other node cross to it once, and in fp8."""
    trace = describe("mixtral-8x7b", layers=2, batch=1, sequence=8192, optimizer="none", dtype="bf16", gpu="H100")
    options: dict[str, Any] = {"topology": "dgx-h100(gpus=16)", "options": {"load": "balanced"}}
    nccl, deepep = (
        simulate(trace, "dp=8,tp=2,ep=8", ep_transport=name, **options).data.step_time_s for name in ("nccl", "deepep")
    )
    assert deepep < nccl


def test_its_buffers_are_held_all_the_time(mixtral: Trace) -> None:
    """Eight ranks: ten channels to eight GPUs, 256 tokens each, of 4,096 values of 2 bytes and 128 choices of 16 bytes."""

    memory = rank_memory(mixtral, "dp=8,ep=8", ep_transport="deepep", options={"load": "balanced"})
    items = memory.report().usage.lifetimes.items
    assert max(item.nbytes for item in items if item.category == "communication") == 10 * 8 * 256 * (
        4096 * 2 + 128 * 16
    )


def test_hybridep_has_room_for_the_tokens_of_all_ranks_twice(mixtral: Trace) -> None:
    """Eight ranks of 512 tokens of 4,096 values of 2 bytes: what is dispatched, and what is combined."""
    memory = rank_memory(mixtral, "dp=8,ep=8", ep_transport="hybridep", options={"load": "balanced"})
    items = memory.report().usage.lifetimes.items
    assert max(item.nbytes for item in items if item.category == "communication") == 2 * 8 * 512 * 4096 * 2


def test_a_network_that_knows_no_transports_sends_the_same_bytes(mixtral: Trace) -> None:
    class Plain(Network):
        """One second for each byte of an all-to-all."""

        def transfer(self, source: Any, destination: Any, nbytes: float) -> Any:
            return self.env.timeout(0)

        def collective(self, kind: Any, group: Any, nbytes: float, *, root: Any = None, shares: Any = None) -> Any:
            return self.env.timeout(nbytes if kind == "all_to_all" else 0)

    topology = Topology.load("dgx-h100")
    run = simulate(
        MIXTRAL, "dp=4,ep=4", network=Plain, topology=topology, ep_transport="deepep", options={"load": "balanced"}
    )
    assert run.data.step_time_s == pytest.approx(2 * 16 * 2 * (20 + 64), rel=1e-3)


def test_the_dtype_of_what_is_dispatched_is_noted(mixtral: Trace) -> None:
    notes = simulate(mixtral, "dp=8,ep=8", topology="dgx-h100", ep_transport="deepep").data.notes
    assert "ep: DeepEP dispatches tokens in fp8, with a scale for each 128 values" in notes


@pytest.mark.parametrize(
    ("topology", "said"),
    [
        ("dgx-h100", []),
        ("dgx-a100", ["dgx-a100: DeepEP was not measured on it; its kernels take the constants of dgx-h100"]),
        (
            "dgx-h100(gpus=40)",
            ["DeepEP over more than 4 nodes follows measurements of a third of the bandwidth that it publishes"],
        ),
        (
            "switch(8, bandwidth=100 GB/s, latency=1 us)",
            ["switch 8: DeepEP's bytes take the links as they are, without the launch costs of its kernels"],
        ),
    ],
)
def test_how_sure_its_times_are_is_noted(mixtral: Trace, topology: str, said: list[str]) -> None:
    notes = simulate(mixtral, "dp=8,ep=8", topology=topology, ep_transport="deepep").data.notes
    assert [note for note in notes if "DeepEP" in note and not note.startswith("ep:")] == said


def test_an_unknown_transport_is_refused() -> None:
    with pytest.raises(OptionError, match="'deep' is not known"):
        planned(MIXTRAL, "dp=4,ep=4", ep_transport="deep")
