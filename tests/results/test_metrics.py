"""The figures by which runs are compared: from their formulas by hand, and the same whatever the parallelism."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import traces

from triosim import cli, save_trace
from triosim.errors import OptionError
from triosim.gpus import find
from triosim.results.metrics import impossible, model_flops, tokens_of
from triosim.results.result import Result
from triosim.simulation import simulate
from triosim.trace import Operator, Trace
from triosim.trace.formats import read_trace

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "traces"
FAST = {"topology": "switch", "bandwidth": 1e18, "latency": 0}
SLOW = "ring(4, bandwidth=1 MB/s)"

#: Of batch 8 through 16 x 32, 32 x 16 and 16 x 4: two FLOPs for each sample and weight.
FORWARD = 2 * 8 * (16 * 32 + 32 * 16 + 16 * 4)
#: Each product again for its weight's gradient, and, but for the first, for its input's.
BACKWARD = 2 * FORWARD - 2 * 8 * 16 * 32


def on_a100(trace: Trace) -> Trace:
    return replace(trace, gpu="A100-SXM-40GB")


def test_mfu_is_the_models_flops_over_what_the_gpus_could_do() -> None:
    result = simulate(on_a100(traces.mlp()), "dp=4", topology=SLOW)
    found = result.metrics
    assert found.model_flops == 4 * (FORWARD + BACKWARD)
    assert (found.peak_dtype, found.peak_flops) == ("float32", 4 * 19.5e12)
    assert found.mfu == pytest.approx(4 * (FORWARD + BACKWARD) / (result.step_time_s * 4 * 19.5e12))
    assert found.hfu == pytest.approx(found.mfu)


def test_inference_has_the_forward_pass_alone() -> None:
    found = simulate(on_a100(traces.mlp()), "single", gpus=1, training=False).metrics
    assert found.model_flops == found.hardware_flops == FORWARD


@pytest.mark.parametrize(
    ("parallel", "options"),
    [
        ("ddp=4", {}),
        ("pp=2", {"micro_batches": 4}),
        ("tp=4", {}),
        ("tp=4", {"tp_style": "megatron"}),
        ("dp=2,pp=2", {}),
        ("ddp=2", {"iterations": 3, "batch_size": 16}),
    ],
)
def test_what_the_gpus_execute_is_the_models_flops_where_nothing_is_recomputed(
    parallel: str, options: dict[str, object]
) -> None:
    result = simulate(on_a100(traces.mlp()), parallel, topology=SLOW, **options)  # type: ignore[arg-type]
    found = result.metrics
    assert found.model_flops == pytest.approx((FORWARD + BACKWARD) * result.data.global_batch_size / 8)
    assert found.hardware_flops == pytest.approx(found.model_flops)


@pytest.mark.parametrize("attention", ["ring", "all-gather"])
def test_context_parallelism_executes_what_one_gpu_does(attention: str) -> None:
    """Ring attention skips masked blocks; what it computes of the others counts for them."""
    kept = {"batch_size": 4, "seq": 256, "gpu": "A100"}
    one = simulate("gpt2", "single", **kept).metrics  # type: ignore[arg-type]
    four = simulate("gpt2", "cp=4", options={"cp": attention}, **kept).metrics  # type: ignore[arg-type]
    assert four.hardware_flops == pytest.approx(one.hardware_flops)
    assert four.hfu is not None
    assert four.mfu is not None
    assert four.hfu > four.mfu


def test_a_transformer_needs_six_flops_for_each_weight_and_token_and_twelve_for_attention() -> None:
    """Llama 3.2 1B (PaLM, appendix B): 6 N + 12 layers x width x length a token, N without the table of embeddings."""
    trace = read_trace(EXAMPLES / "llama_1b_a100_fake.json.gz")
    tokens, width, layers, length = 4 * 2048, 2048, 16, 2048
    weights = layers * (2 * width * width + 2 * width * 512 + 3 * width * 8192) + width * 128256
    expected = tokens * (6 * weights + 12 * layers * width * length)
    assert model_flops([(trace, 1.0)], None) == {"bfloat16": pytest.approx(expected, rel=1e-6)}


def test_attention_that_computes_its_scores_again_does_more_than_the_model_needs() -> None:
    """Backward of fused attention is five products for the forward pass' two, and four would do."""
    found = simulate(EXAMPLES / "gpt2_a100_fake.json.gz", "single", gpus=1).metrics
    assert found.hardware_flops is not None
    assert found.model_flops is not None
    attention = 12 * 4 * 8 * 1024 * 1024 * 768  # 12 layers, two products of (tokens, tokens, width) for 8 samples
    assert found.hardware_flops - found.model_flops == pytest.approx(attention / 2)


def test_what_is_computed_again_for_the_backward_pass_is_the_hardwares() -> None:
    """A product in the backward pass that differentiates nothing is one of the forward pass, run again."""
    trace = on_a100(traces.mlp())
    first = next(one for one in trace.operators if one.phase == "forward")
    again = replace(first, id=10_000, phase="backward")
    at = next(i for i, one in enumerate(trace.operators) if one.phase == "backward")
    found = simulate(
        replace(trace, operators=(*trace.operators[:at], again, *trace.operators[at:])), "single", gpus=1
    ).metrics
    assert found.model_flops == FORWARD + BACKWARD
    assert found.hardware_flops == FORWARD + BACKWARD + 2 * 8 * 16 * 32
    assert found.hfu is not None
    assert found.mfu is not None
    assert found.hfu > found.mfu


def test_a_trace_that_does_not_link_its_gradients_counts_them_twice_the_forward_pass() -> None:
    trace = traces.mlp()
    blind = replace(trace, operators=tuple(replace(one, forward=None) for one in trace.operators))
    assert sum(model_flops([(blind, 2.0)], None).values()) == 2 * 3 * FORWARD


def test_unequal_gpus_are_measured_by_all_their_peaks() -> None:
    found = simulate(
        on_a100(traces.mlp()), "dp=4", topology=SLOW, conditions={"gpu_kinds": {2: "H100-SXM", 3: "H100-SXM"}}
    ).metrics
    assert found.peak_flops == 2 * find("A100").rate("float32") + 2 * find("H100-SXM").rate("float32")
    assert found.energy_j is not None


def test_a_gpu_that_nobody_knows_has_no_peak() -> None:
    found = simulate(traces.mlp(), "dp=4", topology=SLOW).metrics
    assert (found.mfu, found.hfu, found.peak_flops, found.energy_j, found.cost) == (None,) * 5
    assert found.model_flops == 4 * (FORWARD + BACKWARD)


def test_less_than_the_model_needs_is_noted() -> None:
    """Experts that drop tokens compute less than the model's FLOPs."""
    found = simulate(on_a100(traces.mlp()), "single", gpus=1).metrics
    assert found.mfu is not None
    assert list(impossible(found)) == []
    (note,) = impossible(replace(found, hfu=0.9 * found.mfu))
    assert "is below MFU" in note


def test_more_than_the_peak_is_noted() -> None:
    trace = on_a100(traces.mlp())
    quick = replace(trace, operators=tuple(replace(one, seconds=one.seconds * 1e-7) for one in trace.operators))
    assert any("HFU is" in note for note in simulate(quick, "single", gpus=1).notes)


def forward_chain(layers: int = 4, batch: int = 16, width: int = 16) -> Trace:
    b = traces.Builder(batch)
    data = b.tensor(batch, width, category="input")
    for index in range(layers):
        out = b.tensor(batch, width)
        b.run("aten::linear", [data, b.parameter(width, width)], [out], layer=f"fc{index}")
        data = out
    return b.trace()


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 1), (2, 4), (4, 4), (4, 16)])
def test_the_bubble_of_a_uniform_pipeline_is_that_of_its_closed_form(stages: int, micro_batches: int) -> None:
    """(S - 1) / (M + S - 1) of the time (Huang et al. 2019)."""
    result = simulate(
        forward_chain(), f"pp={stages}", topology=FAST, micro_batches=micro_batches, training=False, iterations=1
    )
    assert result.metrics.bubble_fraction == pytest.approx((stages - 1) / (micro_batches + stages - 1), rel=1e-6)


def test_without_a_pipeline_there_is_no_bubble() -> None:
    assert simulate(traces.mlp(), "ddp=4", topology=SLOW).metrics.bubble_fraction is None


def test_tokens_are_what_is_looked_up() -> None:
    result = simulate(traces.transformer(batch=2, tokens=8), "dp=2", topology="ring(2, bandwidth=10 GB/s)")
    found = result.metrics
    assert found.tokens_per_sample == 8
    assert found.tokens_per_s == pytest.approx(4 * 8 / result.step_time_s)
    assert found.tokens_per_s_per_gpu == pytest.approx(2 * 8 / result.step_time_s)
    assert found.samples_per_s_per_gpu == pytest.approx(2 / result.step_time_s)


def test_tokens_of_micro_batches_are_those_of_all_calls_of_the_table() -> None:
    """Of a step of two micro-batches of one sample each, captured without joining them."""
    trace = traces.transformer(batch=2, tokens=8)
    (lookup,) = (one for one in trace.operators if one.name == "aten::embedding" and one.phase == "forward")
    halves = [replace(one, shape=(1, 8)) if one.shape == (2, 8) else one for one in lookup.inputs]
    calls = tuple(replace(lookup, inputs=tuple(halves)) for _ in range(2))
    others = tuple(one for one in trace.operators if one is not lookup)
    assert tokens_of(replace(trace, operators=(*calls, *others))) == 8
    assert tokens_of(replace(trace, operators=(*calls[:1], *others))) is None  # half of the samples are elsewhere


def test_tokens_of_a_part_of_the_table_are_computed_of_those_of_the_input() -> None:
    """As ranks of tensor parallelism look up: indices of their own rows, made of the input's."""
    trace = traces.transformer(batch=2, tokens=8)
    (lookup,) = (one for one in trace.operators if one.name == "aten::embedding" and one.phase == "forward")
    (given,) = (one for one in lookup.inputs if one.category == "input")
    own = replace(given, id=1_000_000, category="activation")
    offset = replace(lookup, name="aten::sub", inputs=(given,), outputs=(own,))
    masked = replace(lookup, inputs=tuple(own if one is given else one for one in lookup.inputs))
    others = tuple(one for one in trace.operators if one is not lookup)
    assert tokens_of(replace(trace, operators=(offset, masked, *others))) == 8
    assert tokens_of(replace(trace, operators=(masked, *others))) is None  # indices of nobody's input, as of positions


def test_tokens_can_be_said_and_pictures_have_none() -> None:
    assert tokens_of(traces.convnet()) is None
    assert simulate(traces.convnet(), "single", gpus=1).metrics.tokens_per_s is None
    said = simulate(traces.convnet(), "single", gpus=1, tokens_per_sample=64)
    assert said.metrics.tokens_per_s == pytest.approx(64 * 8 / said.step_time_s)


def test_energy_is_that_of_all_gpus_at_their_tdp_and_cost_that_of_their_hours() -> None:
    result = simulate(on_a100(traces.mlp()), "dp=4", topology=SLOW, price=3.6)
    assert result.metrics.energy_j == pytest.approx(4 * 400 * result.step_time_s)
    assert result.metrics.cost == pytest.approx(4 * 0.001 * result.step_time_s)


def test_another_gpu_has_its_own_peak_and_the_same_price() -> None:
    found = simulate(on_a100(traces.mlp()), "single", gpus=1, gpu="H100-SXM", price=3.0).metrics
    assert found.peak_flops == find("H100-SXM").rate("float32")
    assert found.price_per_gpu_hour == 3.0


@pytest.mark.parametrize("option", ["price", "tokens_per_sample"])
def test_a_price_and_tokens_are_more_than_nothing(option: str) -> None:
    with pytest.raises(OptionError, match="is not a number above 0"):
        simulate(traces.mlp(), "single", gpus=1, **{option: -1.0})  # type: ignore[arg-type]


def test_axes_hold_what_is_sent_along_them_and_all_that_is_exposed() -> None:
    """dp reduces 4,560 bytes once for each of two stages' shares; what crosses is 8 x 16 activations, and their gradient."""
    data = simulate(traces.mlp(), "dp=2,pp=2", topology=SLOW, stages=["relu1"], micro_batches=1).data
    found = {row.axis: row for row in data.axes}
    assert found["dp"].bytes == 4560
    assert found["pp"].bytes == 2 * 2 * 8 * 16 * 4
    assert (found["dp"].transfers, found["pp"].transfers) == (2, 4)
    mean = math.fsum(rank.exposed_communication_s for rank in data.ranks) / 4
    assert math.fsum(row.exposed_s for row in data.axes) == pytest.approx(mean)


def test_the_command_shows_and_writes_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    trace, output, table = tmp_path / "t.json", tmp_path / "r.json", tmp_path / "r.csv"
    save_trace(on_a100(traces.transformer(batch=4)), trace)
    options = ["-p", "dp=2,pp=2", "-t", SLOW, "--price", "2.5", "-o", str(output), "--csv", str(table)]
    assert cli.run(["simulate", str(trace), *options]) == 0
    shown = capsys.readouterr().out
    assert all(len(line) <= 80 for line in shown.splitlines())
    for word in ("tokens/s", "MFU", "bubble", "energy", "an estimate", "a million tokens", "exposed  "):
        assert word in shown
    written = json.loads(output.read_text(encoding="utf-8"))
    assert written["metrics"]["price_per_gpu_hour"] == 2.5
    assert Result.load(output).metrics == Result.load(output).data.metrics
    assert "metric,,mfu," in table.read_text(encoding="utf-8")


def test_recurrent_layers_without_tensors_count_what_the_trace_says() -> None:
    one = Operator(1, "aten::lstm", "forward", "rnn", (), (), 1e-3, flops=5e6)
    assert model_flops([(Trace((one,), 1), 3.0)], None) == {"float32": 15e6}
