"""Recomputation: which operators run again in each unit, and where."""

from __future__ import annotations

import pytest
import traces
from traces import collectives_of, draw, operators_of, planned

from triosim import simulate
from triosim.errors import OptionError
from triosim.tasks import Task
from triosim.trace import Operator

GPT = traces.transformer(blocks=2)
UNIT = ("ln_1", "attn.q", "attn.k", "attn.v", "attn", "attn.proj", "", "ln_2", "mlp.fc", "mlp.act", "mlp.proj", "")


def again(policy: str, parallel: str = "single", gpus: int = 1, **options: object) -> list[Operator]:
    tasks: list[Task] = draw(planned(GPT, parallel, gpus, recompute=policy, **options).tasks(0))
    return [operator for operator in operators_of(tasks) if operator.recomputed]


def layers(operators: list[Operator]) -> list[str]:
    return [operator.layer for operator in operators if "view" not in operator.name]


def test_full_runs_each_unit_again_the_last_one_first() -> None:
    expected = [f"h.{unit}.{layer}".rstrip(".") for unit in (1, 0) for layer in UNIT]
    found = again("full")
    assert layers(found) == expected
    assert {operator.phase for operator in found} == {"backward"}
    times = {operator.id: operator.seconds for operator in GPT.operators}
    assert sum(operator.seconds for operator in found) == pytest.approx(
        sum(times[op.id] for op in GPT.operators if op.phase == "forward" and op.layer.startswith("h."))
    )


@pytest.mark.parametrize("policy", ["full", "checkpoint", "selective"])
def test_each_second_unit_runs_again(policy: str) -> None:
    """The last of each two, as torchtitan counts; each first one is all."""
    assert layers(again(f"{policy}/2")) == [layer for layer in layers(again(policy)) if layer.startswith("h.1")]
    assert layers(again(f"{policy}/1")) == layers(again(policy))


@pytest.mark.parametrize("parallel", ["fsdp=2", "tp=2,pp=2"])
def test_each_second_unit_costs_half_of_all(parallel: str) -> None:
    """Whether equal layers are planned once or not."""
    deep = traces.transformer(blocks=8)
    fast = "ring(4, bandwidth=1000 TB/s, latency=0 s)"

    def busy(policy: str, *, fold: bool) -> float:
        options = {"topology": fast, "compute_model": "linear", "micro_batches": 1, "recompute": policy, "fold": fold}
        return sum(rank.compute_s for rank in simulate(deep, parallel, **options).data.ranks)  # type: ignore[arg-type]

    none, half, whole = (busy(policy, fold=True) for policy in ("none", "full/2", "full"))
    assert half - none == pytest.approx((whole - none) / 2)
    assert busy("full/2", fold=False) == pytest.approx(half)


def test_a_unit_runs_again_just_before_its_backward_pass() -> None:
    operators = operators_of(draw(planned(GPT, "single", 1, recompute="full").tasks(0)))
    backward = [operator for operator in operators if operator.phase == "backward"]
    order = [
        (operator.layer.split(".")[1], operator.recomputed) for operator in backward if operator.layer.startswith("h.")
    ]
    assert list(dict.fromkeys(order)) == [("1", True), ("1", False), ("0", True), ("0", False)]


def test_checkpoint_stops_when_all_that_is_read_is_there() -> None:
    """No backward operator of the unit reads its last sum, which does not run again."""
    found = layers(again("checkpoint"))
    assert [layer for layer in found if layer.startswith("h.1")] == [f"h.1.{x}".rstrip(".") for x in UNIT[:-1]]


def test_selective_runs_the_core_of_attention_again() -> None:
    assert [operator.name for operator in again("selective")] == ["aten::scaled_dot_product_attention"] * 2


def test_modules_that_are_checkpointed_run_again_as_far_as_their_own_backward_pass_reads() -> None:
    """The last product of the feed-forward network, and what a norm returns, are kept by who reads them."""
    found = layers(again("modules=mlp,ln_2"))
    assert found == ["h.1.mlp.fc", "h.1.mlp.act", "h.0.mlp.fc", "h.0.mlp.act"]
    whole = layers(again("modules=0,1"))
    assert whole == layers(again("checkpoint"))


def test_modules_whose_outputs_are_discarded_run_again_for_those_who_read_them() -> None:
    """The layer behind a norm reads what the norm returned."""
    assert layers(again("discard=ln_2")) == ["h.1.ln_2", "h.0.ln_2"]
    assert set(layers(again("modules=mlp,ln_2"))) < set(layers(again("discard=mlp,ln_2")))


def test_what_is_saved_does_not_run_again() -> None:
    names = {operator.name for operator in again("save=linear,attention")}
    assert "aten::native_layer_norm" in names
    assert not names & {"aten::linear", "aten::scaled_dot_product_attention"}


def test_every_second_one_can_be_saved() -> None:
    """Of q, k, v, the projection and the MLP's two in a unit, the first, third and fifth are kept."""
    linear = [operator.layer for operator in again("save=linear/2") if operator.name == "aten::linear"]
    assert [layer for layer in linear if layer.startswith("h.1")] == ["h.1.attn.k", "h.1.attn.proj", "h.1.mlp.proj"]


def test_the_collectives_of_tensor_parallelism_run_again_too() -> None:
    def reductions(policy: str) -> int:
        tasks = draw(planned(GPT, "tp", 2, tp_style="megatron", recompute=policy).tasks(0))
        return sum(kind == "all_reduce" for kind, _ in collectives_of(tasks))

    assert reductions("full") - reductions("none") == 2 * 2  # after attention and after the MLP, in each block
    assert reductions("selective") == reductions("none")


@pytest.mark.parametrize("parallel", ["ddp=2", "fsdp=2", "pp=2", "tp=2,pp=2"])
def test_it_costs_what_it_computes(parallel: str) -> None:
    fast = "ring(4, bandwidth=1000 TB/s, latency=0 s)"

    def busy(policy: str) -> float:
        result = simulate(GPT, parallel, topology=fast, compute_model="linear", micro_batches=1, recompute=policy)
        return sum(rank.compute_s for rank in result.data.ranks)

    assert busy("none") < busy("selective") < busy("checkpoint") < busy("full")


def test_gradients_are_awaited_before_a_pipeline_stage_recomputes() -> None:
    fast = "ring(2, bandwidth=1000 TB/s, latency=0 s)"
    shared = {"topology": fast, "compute_model": "linear", "micro_batches": 1}
    serial = simulate(GPT, "single", recompute="full", compute_model="linear")
    assert simulate(GPT, "pp=2", recompute="full", **shared).step_time_s == pytest.approx(  # type: ignore[arg-type]
        serial.step_time_s - _later_optimizer(), rel=0.02
    )


def _later_optimizer() -> float:
    """Stages update their parameters side by side: what the last stage's optimizer hides."""
    seconds = sum(operator.seconds for operator in GPT.operators if operator.phase == "optimizer")
    return seconds / 2


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("ful", "unknown policy 'ful'; did you mean 'full'"),
        ("save=", "unknown policy"),
        ("save=linaer", "has no operator 'linaer'; did you mean 'linear'"),
        ("save=linear/0", "names no operators"),
        ("modules=", "unknown policy"),
        ("modules=ln_3", "no module is called 'ln_3'; did you mean 'ln_2'"),
    ],
)
def test_policies_that_are_none(policy: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        planned(GPT, "single", 1, recompute=policy)


def test_a_network_without_numbered_modules_has_no_unit_to_recompute() -> None:
    with pytest.raises(OptionError, match="nothing to recompute"):
        planned(traces.mlp(), "single", 1, recompute="full")
