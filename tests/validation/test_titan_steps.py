"""Rows of torchtitan and of TorchSim's tables 17 and 18: read, and predicted from sizes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from triosim import gpus
from validation import end_to_end
from validation.steps import constants, formats, titan_step, torchtitan
from validation.steps.titan_step import Nodes, Step, peak_gib, step_memory, step_seconds

HEADER = (
    "model,gpu,gpus,parallelism,local_batch,global_batch,sequence_length,activation_checkpointing,compile,float8,"
    "tokens_per_second_per_gpu,memory_gib,source"
)
GPU = '"H100 HBM2e 96GB 2.4TB/s 500W, 8 per NVLink node, 400 Gb/s RDMA per GPU"'
VALUES = {"beside_collective": 1.15, "beside_computation": 1.05}
PARAMETERS = 1_235_814_400  # of Llama 3.2 1B, as published
SMALL = Step(model="llama3.2-1b", axes=(("fsdp", 2),), batch=1, sequence=512, checkpoints="selective", nodes=Nodes())


def gib(step: Step) -> float:
    return peak_gib(step_memory(step), "allocated", 96e9)


def table(folder: Path, line: str) -> Path:
    path = folder / "titan.csv"
    path.write_text(f"{HEADER}\n{line}\n")
    return path


def test_a_row_says_board_network_and_step(tmp_path: Path) -> None:
    line = f'llama3.1-70B,{GPU},256,"fsdp=32, tp=8",16,512,8192,full,yes,no,500,50,there'
    kind, (row,) = formats.read(table(tmp_path, line))
    step, tokens = row.case
    assert kind.name == "torchtitan"
    assert (row.measured, row.unit, row.quantity) == (500, "tokens/s", "throughput of a GPU")
    assert (step.model, step.axes, step.gpus) == ("llama3-70b", (("fsdp", 32), ("tp", 8)), 256)
    assert (step.checkpoints, step.compiled, step.eight) == ("full", True, False)
    assert step.nodes == Nodes(bandwidth=2.4e12, memory=96e9, watts=500.0, gpus=8, card="400 Gb/s")
    assert tokens == 512 * 8192
    (memory,) = row.also
    assert (memory.label, memory.measured, memory.unit, memory.quantity) == (row.label, 50, "GiB", "peak memory")


def test_a_row_without_memory_has_one_quantity(tmp_path: Path) -> None:
    _, (row,) = formats.read(table(tmp_path, f"llama3.1-8B,{GPU},8,fsdp=8,2,16,8192,selective,no,no,1,,x"))
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
    assert {row.case.gpus for row in rows} == {128}
    errors = [abs(row.published / row.measured - 1) for row in rows if row.published is not None]
    assert sum(errors) / 8 == pytest.approx(0.093, abs=0.003)  # the paper says 9 and 10%


def test_all_layers_are_on_the_line_through_4_and_8(monkeypatch: pytest.MonkeyPatch) -> None:
    """Llama 3.2 1B has 16; units run one after the other as those before them did, where launches are no limit."""
    step = replace(SMALL, sequence=4096)
    lined = step_seconds(step, VALUES)
    monkeypatch.setattr(titan_step, "MORE", 16)
    assert lined == pytest.approx(step_seconds(step, VALUES), rel=2e-3)


def test_what_a_row_says_makes_a_step_slower_or_faster() -> None:
    plain = step_seconds(SMALL, VALUES)
    assert step_seconds(replace(SMALL, compiled=True), VALUES) < plain
    assert step_seconds(replace(SMALL, checkpoints="full"), VALUES) > plain
    assert step_seconds(replace(SMALL, nodes=Nodes(bandwidth=2.4e12, watts=500.0)), VALUES) > plain


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
    """8 GPUs take 131,072 tokens in 2 s: 8,192 a GPU each second; a fifth too many, and a tenth too little of the memory."""
    monkeypatch.setattr(torchtitan, "step_seconds", lambda *_: 2.0)
    monkeypatch.setattr(torchtitan, "step_memory", lambda _: None)
    monkeypatch.setattr(torchtitan, "peak_gib", lambda *_: 45.0)
    path = str(table(tmp_path, f"llama3.1-8B,{GPU},8,fsdp=8,2,16,8192,selective,no,no,6826.667,50,x"))
    assert end_to_end.main(["--table", path]) == 0
    first, second, *sums = capsys.readouterr().out.splitlines()
    assert "tokens/s, +20.0%" in first
    assert "peak memory measured 50 GiB, predicted 45 GiB, -10.0%" in second
    assert ["MAPE 20.00%" in sums[0], "asked 7%" in sums[0], "MAPE 10.00%" in sums[1], "asked 4%" in sums[1]] == 4 * [
        True
    ]
    for form, count in (("csv", 3), ("json", None)):
        assert end_to_end.main(["--table", path, "--format", form]) == 0
        said = capsys.readouterr().out
        assert count in (None, len(said.splitlines()))
        assert "peak memory" in said
        assert "throughput of a GPU" in said


def test_the_constants_are_in_their_bounds_and_say_what_they_are() -> None:
    known = constants.load()
    for name in titan_step.CONSTANTS:
        assert known[name].low <= known[name].value <= known[name].high
        assert known[name].meaning


def test_a_gpu_of_one_s_own_is_found_by_its_name() -> None:
    made = gpus.register(replace(gpus.find("H100"), name="an H100 with another fan", aliases=()))
    assert gpus.find("an H100 with another fan") is made


def test_overlapped_tensor_parallelism_asks_for_some(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "titan.csv"
    path.write_text(f"{HEADER},async_tp\nllama3.1-8B,{GPU},8,fsdp=8,2,16,8192,selective,no,no,1,1,x,yes\n")
    assert end_to_end.main(["--table", str(path)]) == 2
    assert "titan.csv:2: 'async_tp' is 'yes'; 'fsdp=8' has no tp" in capsys.readouterr().err


def test_steps_of_one_model_that_are_divided_alike_are_left_out_of_a_fit_together() -> None:
    """8 of TorchSim's rows have 70 billion parameters: five with FSDP alone, three with tensor parallelism too."""
    sizes = [row.model for row in formats.named("torchsim-sharded").built_in()]
    assert (sizes.count("llama3-70b fsdp"), sizes.count("llama3-70b fsdp,tp")) == (5, 3)
