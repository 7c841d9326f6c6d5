"""The memory of every rank of a step on many GPUs: hand-counted bytes, published formulas, and what one GPU's replay says."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import triosim
from triosim.cli import run
from triosim.errors import DoesNotFitError, OptionError
from triosim.memory import MemoryReport, analyse
from triosim.memory.liveness.lifetimes import MEMORY_CATEGORIES
from triosim.memory.world_memory import WorldMemory
from triosim.models import GPT, Llama
from triosim.trace import Trace

TRACES = Path(__file__).parents[2] / "examples" / "traces"
LENGTH, BATCH, WIDTH, HEADS, WORDS = 128, 2, 256, 8, 512


@cache
def gpt(layers: int = 2, optimizer: str = "master-adamw", batch: int = BATCH) -> Trace:
    """A small GPT with the scores of attention in memory, in fp16, as Megatron-LM trains it."""
    model = GPT(layers=layers, hidden=WIDTH, heads=HEADS, vocab=WORDS, sequence=LENGTH, dropout=0.1)
    return triosim.describe(model, batch=batch, dtype="fp16", attention="math", optimizer=optimizer, gpu="A100")


def parameters(trace: Trace) -> int:
    """How many parameters there are: 12 h^2 + 13 h a layer, the embeddings, and the last norm."""
    layers = len({op.layer for op in trace.operators if op.layer.endswith("linear_fc1")})
    return layers * (12 * WIDTH**2 + 13 * WIDTH) + (WORDS + LENGTH + 2) * WIDTH


def most(report: MemoryReport, category: str) -> int:
    """The most bytes of a category at any time."""
    return int(report.usage.live[:, MEMORY_CATEGORIES.index(category)].max())


def kept(layers: int, **options: Any) -> int:
    """The activations that are there when the forward pass ends."""
    found = triosim.rank_memory(gpt(layers), options.pop("parallel", "single"), **options).report(workspace=False)
    backward = next(i for i, one in enumerate(found.trace.operators) if one.phase == "backward")
    row = 1 + max(i for i, event in enumerate(found.usage.events) if event.operator < backward)
    return int(found.usage.live[row, MEMORY_CATEGORIES.index("activation")])


# ---- one GPU ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bert", "gpt2", "resnet50", "vgg13"])
def test_one_gpu_needs_what_the_replay_of_its_capture_says(name: str) -> None:
    trace = triosim.load_trace(TRACES / f"{name}_a100_fake.json.gz")
    alone = analyse(trace)
    found = triosim.rank_memory(trace)
    assert found.fullest.peak_bytes == pytest.approx(alone.peak_live, rel=1e-6)
    assert found.report().peak_reserved == pytest.approx(alone.peak_reserved, rel=1e-3)


@pytest.mark.parametrize("parallel", ["single", "pp=2"])
def test_inference_needs_no_optimizer_states_and_no_gradients(parallel: str) -> None:
    memory = triosim.rank_memory(TRACES / "bert_a100_fake.json.gz", parallel, training=False)
    for one in memory.ranks:
        assert one.by_category["parameter"] > 0
        assert not {"optimizer_state", "gradient"} & one.by_category.keys()


@pytest.mark.parametrize("optimizer", ["adamw", "fused-adamw", "master-adamw", "sgd"])
def test_one_gpu_needs_what_the_estimate_of_a_description_says(optimizer: str) -> None:
    trace = gpt(2, optimizer)
    assert triosim.rank_memory(trace).fullest.peak_bytes == pytest.approx(analyse(trace).peak_live, rel=1e-4)


@pytest.mark.parametrize(
    ("parallel", "options"),
    [
        ("ddp=4", {}),
        ("fsdp=4", {}),
        ("dp=2,pp=2,tp=2", {"micro_batches": 4, "schedule": "1f1b", "tp_style": "megatron", "batch_size": 8}),
        ("pp=2", {"micro_batches": 8, "schedule": "zero-bubble", "batch_size": 8}),
        ("fsdp=2,pp=2", {"micro_batches": 4, "schedule": "interleaved", "batch_size": 8}),
        ("zero2=2", {"micro_batches": 2}),
    ],
)
def test_the_sums_of_a_rank_are_those_of_its_tensors_one_by_one(parallel: str, options: dict[str, Any]) -> None:
    found = triosim.rank_memory(gpt(4), parallel, **options)
    for one in found.ranks:
        report = found.report(one.rank)
        assert report.peak_live == one.peak_bytes
        assert report.usage.at_peak() == one.by_category
        assert sum(one.by_category.values()) == one.peak_bytes


# ---- what is sharded (Rajbhandari et al. 2020, section 5: 2 psi + 2 psi + K psi, with K = 12) ----------------------


@pytest.mark.parametrize(
    ("parallel", "weights", "gradients", "states"),
    [("dp=4", 1, 1, 1), ("zero1=4", 1, 1, 4), ("zero2=4", 1, 4, 4), ("fsdp=4", 4, 4, 4), ("dp=2,zero1=2", 1, 1, 2)],
)
def test_each_stage_of_zero_divides_what_it_says(parallel: str, weights: int, gradients: int, states: int) -> None:
    trace = gpt()
    psi = parameters(trace)
    report = triosim.rank_memory(trace, parallel, bucket_size=0.0, first_bucket_size=0.0).report(workspace=False)
    assert most(report, "parameter") == pytest.approx(2 * psi / weights, rel=0.01)
    assert most(report, "optimizer_state") == pytest.approx(12 * psi / states, rel=0.01)
    end = report.usage.live[:, MEMORY_CATEGORIES.index("gradient")]
    optimizer = next(i for i, op in enumerate(report.trace.operators) if op.phase == "optimizer")
    row = next(i for i, event in enumerate(report.usage.events, 1) if event.operator >= optimizer)
    assert end[row - 1] == pytest.approx(2 * psi / gradients, rel=0.02)


def test_the_buckets_of_ddp_are_as_large_as_the_gradients() -> None:
    trace = gpt()
    plain, bucketed = (triosim.rank_memory(trace, name).fullest.by_category for name in ("dp=2", "ddp=2"))
    assert bucketed["communication"] - plain.get("communication", 0) == pytest.approx(2 * parameters(trace), rel=0.01)


@pytest.mark.parametrize(("buffers", "units"), [("copied", 3), ("flat", 2)])
def test_fsdp_gathers_a_unit_and_the_next_one(buffers: str, units: int) -> None:
    """In the backward pass: the root, the unit that runs, the next one, and copies of what is scattered of the last."""
    unit = 2 * (12 * WIDTH**2 + 13 * WIDTH)  # in fp16
    root = 2 * (WORDS + LENGTH + 2) * WIDTH
    report = triosim.rank_memory(gpt(4), "fsdp=4", options={"buffers": buffers}).report(workspace=False)
    assert most(report, "communication") == pytest.approx(root + units * unit, rel=0.01)


def test_shares_in_single_precision_take_twice_the_bytes() -> None:
    trace = gpt(2, "fused-adamw")
    low, high = (
        triosim.rank_memory(trace, "fsdp=2", options=options).fullest.by_category
        for options in ({}, {"shard_dtype": "fp32"})
    )
    assert high["parameter"] == pytest.approx(2 * low["parameter"], rel=0.01)
    assert high["optimizer_state"] == pytest.approx(2 * low["optimizer_state"], rel=0.01)


# ---- activations (Korthikanti et al. 2022, equations 1 to 5; statistics of norms are not in them) -------------------


@pytest.mark.parametrize(
    ("options", "formula"),
    [
        ({}, 34 + 5 * HEADS * LENGTH / WIDTH),
        ({"parallel": "tp=4", "tp_style": "megatron"}, 10 + 24 / 4 + 5 * HEADS * LENGTH / WIDTH / 4),
        (
            {"parallel": "tp=4", "tp_style": "megatron", "sequence_parallel": True},
            34 / 4 + 5 * HEADS * LENGTH / WIDTH / 4,
        ),
        ({"parallel": "tp=4", "tp_style": "megatron", "sequence_parallel": True, "recompute": "selective"}, 34 / 4),
        ({"recompute": "full"}, 2),
    ],
)
def test_a_layer_keeps_the_bytes_of_the_published_formula(options: dict[str, Any], formula: float) -> None:
    ranks = 4 if options.get("sequence_parallel") else 1
    mean = max(512, LENGTH * BATCH * 4 // ranks)  # and as much for the deviation, of each of two norms
    statistics = 0 if options.get("recompute") == "full" else 2 * 2 * mean
    layer = kept(3, **options) - kept(2, **options)
    assert layer == LENGTH * BATCH * WIDTH * formula + statistics


def test_what_a_policy_saves_is_kept_even_if_nobody_reads_it() -> None:
    # Without it, the output of every product is made again; the last of a layer is needed by nobody, and kept all the same.
    trace = triosim.describe("llama3-8b", batch=1, sequence=64, layers=2, dtype="bf16", stack="eager")
    products = [op for op in trace.operators if op.phase == "forward" and op.name == "aten::mm" and ".0." in op.layer]
    last = products[-1].outputs[0].nbytes
    found = [
        triosim.rank_memory(trace, recompute=f"save={name}").report(workspace=False) for name in ("mm", "attention")
    ]
    saved = sum(op.outputs[0].nbytes for op in products)
    attention = next(op for op in trace.operators if "attention" in op.name).outputs
    difference = most(found[0], "activation") - most(found[1], "activation")
    assert last > 0
    assert difference >= 2 * (saved - sum(t.nbytes for t in attention)) * 0.9


# ---- pipelines ----------------------------------------------------------------------------------------------------


def activations(found: WorldMemory) -> list[int]:
    return [most(found.report(one.rank, workspace=False), "activation") for one in found.ranks]


def test_a_stage_holds_as_many_micro_batches_as_its_schedule_has_in_flight() -> None:
    trace = gpt(4, batch=8)
    stages = ("transformer.layers.1", "transformer.layers.2", "transformer.layers.3")

    def of(schedule: str, micro_batches: int) -> list[int]:
        options = {"stages": stages, "schedule": schedule, "micro_batches": micro_batches, "batch_size": micro_batches}
        return activations(triosim.rank_memory(trace, "pp=4", **options))

    four, eight, one_f_one_b = of("gpipe", 4), of("gpipe", 8), of("1f1b", 8)
    for stage in range(3):  # the last one has the loss
        each = (eight[stage] - four[stage]) // 4
        assert each > 0
        assert one_f_one_b[stage] == four[stage] - stage * each  # 4 - stage are in flight


def test_gradients_are_there_once_however_many_micro_batches_there_are() -> None:
    trace = gpt(2, batch=8)
    found = [
        most(triosim.rank_memory(trace, micro_batches=count, batch_size=2 * count).report(), "gradient")
        for count in (2, 8)
    ]
    assert found[0] == found[1]


def test_a_tied_table_is_no_stage_s_but_its_users_and_nobody_waits_with_another_s_gradient() -> None:
    # The gradient of the table that the last stage has stays there until the step ends.
    found = triosim.rank_memory(gpt(4), "pp=2", micro_batches=2, batch_size=2, stages=("transformer.layers.2",))
    first, last = (found.report(one.rank, workspace=False) for one in found.ranks)
    table = WORDS * WIDTH * 2
    layers = 2 * 2 * (12 * WIDTH**2 + 13 * WIDTH)
    for report in (first, last):
        gradients = report.usage.live[:, MEMORY_CATEGORIES.index("gradient")]
        assert layers + table <= gradients.max() < layers + 3.5 * table  # its own, what is added to it, and the sum
    temporary = MEMORY_CATEGORIES.index("temporary")
    backward = next(i for i, one in enumerate(first.trace.operators) if one.phase == "backward")
    row = next(i for i, event in enumerate(first.usage.events, 1) if event.operator >= backward)
    assert first.usage.live[row, temporary] < table


def test_a_table_s_gradient_that_is_computed_whole_takes_the_whole_table() -> None:
    share, whole = (
        triosim.rank_memory(gpt(), "tp=4", tp_style="megatron", options=options).report(workspace=False)
        for options in ({}, {"embedding_gradient": "whole"})
    )

    def largest(report: MemoryReport) -> int:
        made = (one for one in report.usage.lifetimes.items if one.layer.startswith("embedding.word") and one.born)
        return max(one.nbytes for one in made)

    assert largest(whole) == WORDS * WIDTH * 2
    assert largest(share) < largest(whole)
    assert most(whole, "parameter") == most(share, "parameter")


def test_dtensor_keeps_the_gathered_input_of_a_layer_and_megatron_gathers_it_again() -> None:
    model, stream = Llama(layers=1, hidden=64, heads=4, feed_forward=96, vocab=256, sequence=16), 4 * 16 * 64 * 2

    def gathered(stack: str) -> Counter[str]:
        trace = triosim.describe(model, batch=4, dtype="bf16", stack=stack, optimizer="none")
        found = triosim.rank_memory(trace, "tp=2", sequence_parallel=True).report(workspace=False).usage.lifetimes.items
        return Counter(one.category for one in found if one.layer == "lm_head" and one.nbytes == stream)

    assert gathered("eager")["activation"] == 1
    assert gathered("megatron") == {"communication": 2, "temporary": 1}  # forward, backward, and the input's gradient


def test_a_ring_has_a_neighbour_s_keys_and_values_beside_its_own() -> None:
    trace = triosim.describe("llama3-8b", batch=1, sequence=256, layers=1, dtype="bf16", optimizer="none")
    report = triosim.rank_memory(trace, "cp=4", bucket_size=0.0, first_bucket_size=0.0).report(workspace=False)
    attention = next(op for op in trace.operators if "attention" in op.name and op.phase == "forward")
    keys = sum(tensor.nbytes for tensor in attention.inputs[1:3]) // 4
    coming = [
        one.nbytes
        for one in report.usage.lifetimes.items
        if one.category == "communication" and one.layer == attention.layer
    ]
    assert coming.count(keys) >= 2 * 3  # of three other ranks, forward and backward


def test_experts_are_divided_among_the_ranks() -> None:
    trace = triosim.describe("mixtral-8x7b", batch=1, sequence=64, layers=1, dtype="bf16", optimizer="fused-adamw")
    whole, shared = (triosim.rank_memory(trace, name).fullest.by_category for name in ("dp=8", "dp=8,ep=8"))
    experts = 8 * 3 * 4096 * 14336 * 2
    assert whole["parameter"] - shared["parameter"] == pytest.approx(experts * 7 / 8, rel=0.01)
    assert whole["optimizer_state"] - shared["optimizer_state"] == pytest.approx(2 * experts * 7 / 8, rel=0.01)


def test_ranks_with_equal_memory_are_one_entry() -> None:
    found = triosim.rank_memory(gpt(4), "dp=2,pp=2,tp=2", micro_batches=2, batch_size=4)
    assert [one.ranks for one in found.ranks] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert found.of_rank(5) is found.ranks[1]


# ---- what a user sees ---------------------------------------------------------------------------------------------


def test_a_run_says_what_its_fullest_rank_has() -> None:
    result = triosim.simulate(gpt(4), "pp=2", micro_batches=2)
    assert result.memory is not None
    rows = result.data.memory
    assert [row.ranks for row in rows] == ["0", "1"]
    assert [row.peak_bytes for row in rows] == [one.peak_bytes for one in result.memory.ranks]
    assert "memory" in str(result)
    assert "does not fit" not in str(result)


def test_what_does_not_fit_is_said_and_stops_the_run_where_that_is_asked_for(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    triosim.save_trace(gpt(2, batch=8), trace)
    gpu = tmp_path / "small.yaml"
    gpu.write_text(
        "name: small\narchitecture: ampere\nbandwidth: 100 GB/s\ncapacity: 500 MB\n"
        "flops: {float32: 1 TFLOP/s, float16: 1 TFLOP/s}\n"
    )
    result = triosim.simulate(trace, "dp=2", gpu=gpu, topology="switch(2, bandwidth=10 GB/s)")
    note = next(note for note in result.notes if "not fit" in note)
    assert note.startswith("ranks 0-1 do not fit their GPUs: ")
    with pytest.raises(DoesNotFitError, match="ranks 0-1 do not fit"):
        triosim.simulate(trace, "dp=2", gpu=gpu, topology="switch(2, bandwidth=10 GB/s)", fail_on_oom=True)
    shared = [str(trace), "-p", "dp=2", "--gpu", str(gpu), "--fail-on-oom", "-q"]
    assert run(["simulate", *shared, "--topology", "switch(2, bandwidth=10 GB/s)"]) == 3
    assert run(["memory", *shared]) == 3
    assert run(["memory", str(trace), "-p", "dp=2", "--gpu", "H100", "--fail-on-oom", "-q"]) == 0


def test_the_command_prints_a_row_for_each_stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.json"
    triosim.save_trace(gpt(4), trace)
    options = ["-p", "dp=4,pp=2", "--micro-batches", "2", "--schedule", "1f1b", "--gpu", "H100"]
    assert run(["memory", str(trace), *options]) == 0
    text = capsys.readouterr().out
    assert "dp=4,pp=2 on 8 GPUs" in text
    assert " 0-3 " in text
    assert " 4-7 " in text
    assert all(len(line) <= 80 for line in text.splitlines())
    assert run(["memory", str(trace), *options, "--format", "json", "--rank", "5"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["ranks"] for row in found["memory"]] == ["0-3", "4-7"]
    assert found["ranks"][0]["rank"] == 5
    assert found["ranks"][0]["peak"]["live_bytes"] == found["memory"][1]["peak_bytes"]


def test_a_rank_that_there_is_not_is_refused() -> None:
    with pytest.raises(OptionError, match="there is no rank 9"):
        triosim.rank_memory(gpt(), "dp=2").report(9)


def test_an_option_that_nobody_reads_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.json"
    triosim.save_trace(gpt(1), trace)
    assert run(["memory", str(trace), "-p", "ddp=2", "--schedule", "gpipe", "--bucket-size", "50 MiB"]) == 0
    shown = capsys.readouterr().out
    assert "note: --schedule has no effect without pp" in shown
    assert "bucket" not in shown
    assert run(["memory", str(trace), "--schedule", "gpipe", "--format", "json"]) == 0
    assert "--schedule has no effect without pp" in json.loads(capsys.readouterr().out)["ranks"][0]["notes"]


def test_layers_of_a_long_name_stay_on_a_line_of_eighty_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.json"
    triosim.save_trace(triosim.describe("llama3-8b", batch=1, sequence=64, layers=2), trace)
    for command in ("simulate", "memory"):
        assert run([command, str(trace), "-p", "pp=2", "--micro-batches", "1"]) == 0
        shown = capsys.readouterr().out
        assert "gate_proj" in shown or "input_layernorm" in shown
        assert not [line for line in shown.splitlines() if len(line.split()) == 1 and len(line.strip()) == 1]


def test_a_notebook_shows_what_the_fullest_rank_has() -> None:
    found = triosim.rank_memory(gpt(1), "fsdp=2", gpu="H100")
    assert repr(found).startswith("ExtrapolatedMemory(fsdp=2 on 2 GPUs: ")
    assert repr(found).endswith(
        f"{found.fullest.peak_bytes / 2**30:.1f} of {found.capacity / 2**30:.1f} GiB on rank 0)"
    )


def test_pytorch_s_divided_loss_holds_one_tensor_of_the_logits_more_than_megatron_s() -> None:
    """At the peak: the result, the labels' gradients and what they are multiplied to; and PyTorch's sum between them."""
    words = 65536
    model = GPT(layers=1, hidden=64, heads=8, vocab=words, sequence=LENGTH)
    pytorch, megatron = (
        triosim.rank_memory(
            triosim.describe(
                model, batch=BATCH, dtype="fp16", kernels="eager", optimizer="sgd", stack=stack, gpu="A100"
            ),
            "tp=4",
            tp_style="megatron",
        ).report(workspace=False)
        for stack in ("eager", "megatron")
    )
    peaks = [int(report.usage.live.sum(axis=1).max()) for report in (pytorch, megatron)]
    assert peaks[0] - peaks[1] == BATCH * LENGTH * words // 4 * 4
