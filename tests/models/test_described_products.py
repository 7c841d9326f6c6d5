"""Described models against the captures of the same models that ship with the project."""

from __future__ import annotations

from pathlib import Path

import pytest
from sameness import flops, parameters, products

import triosim
from triosim.memory import analyse

TRACES = Path(__file__).resolve().parents[2] / "examples" / "traces"


@pytest.mark.parametrize(
    ("capture", "described"),
    [
        ("gpt2", {"model": "gpt2", "batch": 8, "sequence": 1024, "dtype": "fp32"}),
        ("bert", {"model": "bert-base", "batch": 8, "sequence": 512, "dtype": "fp32"}),
        ("llama_1b", {"model": "llama3.2-1b", "batch": 4, "sequence": 2048, "dtype": "bf16", "stack": "eager"}),
        ("resnet50", {"model": "resnet50", "batch": 128, "dtype": "fp32", "optimizer": "sgd"}),
        ("vgg13", {"model": "vgg13", "batch": 128, "dtype": "fp32", "optimizer": "sgd"}),
    ],
)
def test_a_described_model_computes_what_a_captured_one_does(capture: str, described: dict[str, object]) -> None:
    real = triosim.load_trace(TRACES / f"{capture}_a100_fake.json.gz")
    trace = triosim.describe(**described, gpu="A100-SXM-80GB")  # type: ignore[arg-type]
    assert trace.batch_size == real.batch_size
    assert products(trace) == products(real)
    assert flops(trace) == pytest.approx(flops(real), rel=1e-3)
    assert parameters(trace) == parameters(real)
    peaks = [analyse(one, "A100-SXM-80GB").peak_live for one in (trace, real)]
    assert peaks[0] == pytest.approx(peaks[1], rel=1e-3)
    assert trace.seconds == pytest.approx(real.seconds, rel=0.05)
