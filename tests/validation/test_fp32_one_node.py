"""Steps of one node in fp32: how their table is read, and that the measured ones are predicted within what is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from triosim.errors import TriosimError
from validation.report import DataAbsent, data
from validation.steps import formats
from validation.steps.errors import Predicted, summaries

HEADER = "model,precision,gpu,gpus,global_batch,sequence_length,strategy,micro_batches,timed,measured_ms"
ROW = ("gpt2", "fp32", "A100-SXM4-40GB", "4", "8", "1024", "dp=4", "1", "forward+backward", "100")


def table(folder: Path, **changed: str) -> Path:
    path = folder / "t.csv"
    row = dict(zip(HEADER.split(","), ROW, strict=True)) | changed
    path.write_text(HEADER + "\n" + ",".join(f'"{cell}"' for cell in row.values()) + "\n")
    return path


def milliseconds(path: Path) -> float:
    form, rows = formats.read(path)
    return form.predicted(rows[0]).value


def test_a_strategy_names_axes_and_sizes(tmp_path: Path) -> None:
    form, rows = formats.read(table(tmp_path, strategy="dp=2, tp=2", micro_batches="2"))
    assert form.name == "fp32-one-node"
    assert "--parallel dp=2,tp=2" in str(rows[0].case)
    assert "vocab=50432" in str(rows[0].case)  # 50,257 words, padded to a multiple of 128 for each of two ranks
    assert rows[0].label == "gpt2 on 4 A100-SXM4-40GB dp=2, tp=2 batch=8/2 s=1024"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"model": "gpt9"}, "'model' is 'gpt9'"),
        ({"gpu": "A99"}, "A99"),
        ({"strategy": "zz=4"}, "'strategy' is 'zz=4'"),
        ({"strategy": "dp=2"}, "4 GPUs"),
        ({"strategy": "pp=4", "micro_batches": "3"}, "global batch 8"),
        ({"strategy": "tp=8", "gpus": "8"}, "tp=8"),
        ({"sequence_length": "2048"}, "sequence 2048"),
        ({"timed": "all"}, "'timed' is 'all'"),
    ],
)
def test_a_broken_row_is_named(tmp_path: Path, changed: dict[str, str], said: str) -> None:
    with pytest.raises(TriosimError, match=r"t\.csv:2") as caught:
        formats.read(table(tmp_path, **changed))
    assert said in str(caught.value)


def test_a_pipeline_of_one_micro_batch_is_no_faster_than_one_gpu(tmp_path: Path) -> None:
    alone, piped = (
        milliseconds(table(tmp_path, strategy=strategy, gpus=gpus)) for strategy, gpus in (("dp=1", "1"), ("pp=4", "4"))
    )
    assert alone < piped < 1.05 * alone


@pytest.mark.slow
def test_the_measured_steps_are_within_what_is_asked_for() -> None:
    try:
        form, rows = formats.read(data("end_to_end/gpt_fp32_4gpu.csv"))
    except DataAbsent as absent:
        pytest.skip(str(absent))
    found = [Predicted(form.name, "t", row, form.predicted(row).value) for row in rows]
    (summary,) = summaries(found)
    assert summary.mean < form.asked["step time"]


def test_a_gpu_is_on_the_network_that_it_comes_in(tmp_path: Path) -> None:
    """Gradients of 4 V100s take longer over a DGX-1 than over an H100's switch; over PCIe longer still."""

    def seconds(gpu: str, count: str) -> float:
        changed = {"gpu": gpu, "gpus": count, "strategy": f"dp={count}", "global_batch": count}
        return 1e-3 * milliseconds(table(tmp_path, **changed))

    more = [seconds(gpu, "4") - seconds(gpu, "1") for gpu in ("V100-SXM2-32GB", "V100-PCIE")]
    gradients = 4 * 124e6  # bytes in fp32
    assert gradients * 2 * 3 / 4 / 150e9 < more[0] < more[1]  # a DGX-1's GPU has six links of 25 GB/s each way
