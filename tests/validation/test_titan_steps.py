"""Rows of torchtitan and of TorchSim's tables 17, 18, 20 and 21: read as commands, and predicted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from validation import end_to_end
from validation.steps import formats
from validation.steps.command import Command
from validation.steps.titan_command import Step

HEADER = (
    "model,gpu,gpus,parallelism,local_batch,global_batch,sequence_length,activation_checkpointing,compile,float8,"
    "tokens_per_second_per_gpu,memory_gib,source"
)
GPU = '"H100 HBM2e 96GB 2.4TB/s 500W, 8 per NVLink node, 400 Gb/s RDMA per GPU"'
PARAMETERS = 1_235_814_400  # of Llama 3.2 1B, as published
SMALL = Step(
    model="llama3.2-1b",
    axes=(("fsdp", 2),),
    batch=1,
    sequence=512,
    checkpoints="selective",
    gpu="H100-SXM",
    topology="dgx-h100(gpus={})",
)


def gib(step: Step) -> float:
    return step.memory_command().memory().peak_allocated / 2**30


def seconds(step: Step) -> float:
    return step.command().result().step_time_s


def table(folder: Path, line: str) -> Path:
    path = folder / "titan.csv"
    path.write_text(f"{HEADER}\n{line}\n")
    return path


def test_a_row_says_board_network_and_step(tmp_path: Path) -> None:
    """512 samples of 8,192 tokens on 256 GPUs at 500 tokens a second take 32.768 s."""
    line = f'llama3.1-70B,{GPU},256,"fsdp=32, tp=8",16,512,8192,full,yes,no,500,50,there'
    kind, (row,) = formats.read(table(tmp_path, line))
    assert (kind.name, row.unit, row.quantity, row.gpu) == ("torchtitan", "s", "step time", "H100-SXM")
    assert row.measured == pytest.approx(32.768)
    assert str(row.case) == (
        "triosim simulate 'llama3-70b(style=torchtitan)' --gpu 'H100-SXM(power=500W, bandwidth=2.4TB/s, capacity=96GB)' "
        "--topology 'dgx-h100(gpus=256)' --seq 8192 --parallel fsdp=32,tp=8 --stack compiled --recompute checkpoint "
        "--gradient-dtype fp32 --tp-style megatron --sequence-parallel --option shard_dtype=fp32 "
        "--option embedding_gradient=whole --micro-batch-size 16"
    )
    (memory,) = row.also
    assert (memory.label, memory.measured, memory.unit, memory.quantity) == (row.label, 50, "GiB", "peak memory")
    assert str(memory.case).startswith("triosim memory ")


@pytest.mark.parametrize(
    ("said", "schedule", "overlapped"),
    [
        ("fsdp=8,tp=8,pp=8 1f1b", "1f1b", False),
        ("fsdp=8,tp=8,pp=8 interleaved", "interleaved", False),
        ("fsdp=8, tp=8, pp=8, Interleaved async TP", "interleaved", True),
        ("fsdp=8,tp=8,pp=8", "1f1b", False),
    ],
)
def test_a_row_names_the_schedule_and_asynchronous_tensor_parallelism(
    tmp_path: Path, said: str, schedule: str, overlapped: bool
) -> None:
    line = f'llama3.1-405B,{GPU},512,"{said}",32,256,8192,selective per-op,yes,yes,100,,there'
    _, (row,) = formats.read(table(tmp_path, line))
    arguments = row.case.arguments
    assert arguments[arguments.index("--schedule") + 1] == schedule
    assert arguments[arguments.index("--micro-batches") + 1] == "32"
    assert ("overlap=ring" in arguments) == overlapped
    assert {"fsdp=8,tp=8,pp=8", "save=scaled_mm/2,attention", "parameter_dtype=fp8"} <= set(arguments)
    assert not row.also


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (f"llama3.1-8B,{GPU},16,fsdp=8,2,16,8192,selective,no,no,1,1,x", "16 GPUs; 'fsdp=8' makes 8"),
        (f"llama3.1-8B,{GPU},8,fsdp=8,2,32,8192,selective,no,no,1,1,x", "global batch 32; 8 replicas of 2 make 16"),
        (f"llama3.1-8B,{GPU},8,zero=8,2,16,8192,selective,no,no,1,1,x", "'parallelism' is 'zero=8'"),
        (f"llama3.1-9B,{GPU},8,fsdp=8,2,16,8192,selective,no,no,1,1,x", "'model' is 'llama3.1-9B'"),
        (f"llama3.1-8B,{GPU},8,fsdp=8,2,16,8192,selective,no,no,1,much,x", "'memory_gib' is 'much'"),
        ("llama3.1-8B,A100,8,fsdp=8,2,16,8192,selective,no,no,1,1,x", "'gpu' is 'A100'"),
        (f"llama3.1-8B,{GPU},8,fsdp=8,2,16,8192,some,no,no,1,1,x", "'activation_checkpointing' is 'some'"),
    ],
)
def test_a_broken_row_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, said: str) -> None:
    assert end_to_end.main(["--table", str(table(tmp_path, line))]) == 2
    assert f"titan.csv:2: {said}" in capsys.readouterr().err


def test_torchsims_tables_are_built_in() -> None:
    rows = formats.named("torchsim-sharded").built_in()
    assert len(rows) == 8
    assert all("dgx-h100(gpus=128, gpus_per_node=4" in str(row.case) for row in rows)
    errors = [abs(row.published / row.measured - 1) for row in rows if row.published is not None]
    assert sum(errors) / 8 == pytest.approx(0.093, abs=0.003)  # the paper says 9 and 10%


def test_what_a_row_says_makes_a_step_slower_or_faster() -> None:
    plain = seconds(SMALL)
    assert seconds(replace(SMALL, compiled=True)) < plain
    assert seconds(replace(SMALL, checkpoints="full")) > plain
    assert seconds(replace(SMALL, sequence=8192, gpu="H100-SXM(power=500 W)")) > seconds(replace(SMALL, sequence=8192))


@pytest.mark.slow
def test_the_memory_of_a_step_is_at_least_its_share_of_sixteen_bytes_a_parameter() -> None:
    """Two ranks: parameters, gradients and two states in single precision; checkpoints and compiled blocks take less."""
    share = 16 * PARAMETERS / 2 / 2**30
    plain = gib(SMALL)
    assert share < plain < 2 * share
    large = replace(SMALL, batch=4, sequence=2048)
    assert gib(replace(large, compiled=True)) < gib(large)
    assert gib(replace(large, checkpoints="full")) < gib(large)


@pytest.mark.parametrize(
    "axes", ["fsdp=1", "dp=2", "dp=2,fsdp=2", "fsdp=2,tp=2", "fsdp=2,cp=2", "fsdp=2,pp=2", "tp=2,pp=2"]
)
@pytest.mark.parametrize("eight", [False, True])
@pytest.mark.slow
def test_whatever_is_timed_has_a_memory(axes: str, eight: bool) -> None:
    pairs = (part.split("=") for part in axes.split(","))
    step = replace(
        SMALL, axes=tuple((name, int(size)) for name, size in pairs), batch=2, sequence=768, compiled=True, eight=eight
    )
    assert 0 < gib(step) < 16 * PARAMETERS * 1.5 / 2**30


def test_the_two_quantities_of_a_row_have_errors_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """8 GPUs take 131,072 tokens in 2.4 s at 6,826.667 a second each: 2 s are too few, and so are 45 of 50 GiB."""

    class Report:
        peak_reserved = 45 * 2**30

    said = SimpleNamespace(
        step_time_s=2.0, step_time_interval_s=(1.9, 2.5), data=SimpleNamespace(doubts=(), memory=(), launches_s=0.0)
    )

    monkeypatch.setattr(Command, "result", lambda _: said)
    monkeypatch.setattr(Command, "memory", lambda _: Report)
    path = str(table(tmp_path, f"llama3.1-8B,{GPU},8,fsdp=8,2,16,8192,selective,no,no,6826.667,50,x"))
    assert end_to_end.main(["--table", path]) == 0
    first, second, *sums = capsys.readouterr().out.splitlines()
    assert "predicted 2 s, -16.7%" in first
    assert "peak memory measured 50 GiB, predicted 45 GiB, -10.0%" in second
    assert ["MAPE 16.67%" in sums[0], "asked 6%" in sums[0], "MAPE 10.00%" in sums[1], "asked 5%" in sums[1]] == 4 * [
        True
    ]
    assert "100% in their interval" in sums[2]


def test_overlapped_tensor_parallelism_asks_for_some(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "titan.csv"
    path.write_text(f"{HEADER},async_tp\nllama3.1-8B,{GPU},8,fsdp=8,2,16,8192,selective,no,no,1,1,x,yes\n")
    assert end_to_end.main(["--table", str(path)]) == 2
    assert "titan.csv:2: 'async_tp' is 'yes'; 'fsdp=8' has no tp" in capsys.readouterr().err


def test_steps_of_one_model_that_are_divided_alike_are_left_out_of_a_fit_together() -> None:
    """8 of TorchSim's rows have 70 billion parameters: five with FSDP alone, three with tensor parallelism too."""
    sizes = [row.model for row in formats.named("torchsim-sharded").built_in()]
    assert (sizes.count("llama3-70b fsdp"), sizes.count("llama3-70b fsdp,tp")) == (5, 3)
