"""Checkpoints around some modules of a described model, against those that a script of transformers makes of the same ones."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from test_described_captures import CONFIGS
from traces import draw, operators_of, planned

import triosim
from triosim.capture.one_rank import capture_fake

SCRIPT = Path(__file__).with_name("train_checkpoints.py")


def test_checkpointed_modules_run_again_what_pytorch_runs_again(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llama", **CONFIGS["llama"]}))
    real = capture_fake(SCRIPT, [str(path)], gpu="A100")
    trace = triosim.describe(path, batch=4, sequence=48, dtype="fp32", kernels="eager", gpu="A100")
    names = []
    for policy in ("modules=mlp,input_layernorm,post_attention_layernorm", "checkpoint"):
        ours = operators_of(draw(planned(trace, "single", 1, recompute=policy).tasks(0)))
        names.append(Counter(one.name for one in ours if one.seconds and one.phase == "backward"))
    captured = Counter(one.name for one in real.operators if one.seconds and one.phase == "backward")
    captured["aten::masked_fill"] += 2  # of attention that no kernel takes: the capture's kernel masks by itself
    assert names[0] == captured
    assert names[1]["aten::mm"] > captured["aten::mm"]
