"""Small models of every kind, captured from transformers without a GPU, and described from the same config.json."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from sameness import flops, parameters, products

import triosim
from triosim.capture.one_rank import capture_fake
from triosim.memory import analyse
from triosim.models import GPT
from triosim.trace import Trace

SCRIPT = Path(__file__).with_name("train_config.py")
COMMON = {"vocab_size": 512, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0, "use_cache": False}
DECODER = {
    **COMMON,
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 192,
    "tie_word_embeddings": False,
}
ENCODER = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 192}
LABELS = {str(n): str(n) for n in range(10)}
CONVNEXT = {"depths": [1, 2, 1], "num_stages": 3, "hidden_sizes": [16, 32, 48], "image_size": 64, "id2label": LABELS}
T5 = {
    **COMMON,
    **{"d_model": 96, "d_kv": 16, "d_ff": 192, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0},
}
IMAGES = ("vit", "convnext", "convnextv2")
CONFIGS: dict[str, dict[str, Any]] = {
    "gpt2": {**COMMON, "n_embd": 128, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "llama": DECODER,
    "qwen2": {**DECODER, "tie_word_embeddings": True},
    "qwen3": {**DECODER, "head_dim": 48},
    "mixtral": {**DECODER, "num_local_experts": 4, "num_experts_per_tok": 2},
    "gemma": {**DECODER, "head_dim": 48, "tie_word_embeddings": True},
    "gemma2": {**DECODER, "head_dim": 48, "tie_word_embeddings": True},
    "clip": {
        "vision_config": {**ENCODER, "image_size": 64, "patch_size": 16},
        "text_config": {**COMMON, **ENCODER, "hidden_size": 96, "max_position_embeddings": 64},
        "projection_dim": 80,
    },
    "convnext": CONVNEXT,
    "convnextv2": CONVNEXT,
    "deepseek_v3": {
        **DECODER,
        **{"num_key_value_heads": 4, "moe_intermediate_size": 64, "n_routed_experts": 8, "num_experts_per_tok": 2},
        **{"n_group": 2, "topk_group": 1, "n_shared_experts": 2, "first_k_dense_replace": 1},
        **{"kv_lora_rank": 32, "q_lora_rank": 48},
        **{"qk_rope_head_dim": 16, "v_head_dim": 32, "qk_nope_head_dim": 32},
    },
    "bert": {**COMMON, **ENCODER},
    "t5": T5,
    "vit": {**ENCODER, "image_size": 64, "patch_size": 16, "id2label": LABELS},
}


@pytest.mark.parametrize(
    ("kind", "amp"),
    [
        *((kind, None) for kind in CONFIGS),
        *((kind, "bfloat16") for kind in ("gpt2", "llama", "bert", "gemma", "gemma2", "clip", "convnextv2")),
    ],
)
def test_a_config_is_described_as_transformers_trains_it(kind: str, amp: str | None, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": kind, **CONFIGS[kind]}))
    real = capture_fake(SCRIPT, [str(path), *([amp] if amp else [])], gpu="A100")
    dtype = amp or ("bf16" if kind in ("mixtral", "deepseek_v3") else "fp32")
    trace = triosim.describe(
        path,
        **({} if kind in IMAGES else {"sequence": 48}),
        attention="math" if kind == "gemma2" else "flash",  # capped scores: transformers writes them out
        batch=4,
        dtype=dtype,
        precision="mixed" if amp else "plain",
        gpu="A100",
    )
    assert products(trace) == products(real)
    assert flops(trace) == pytest.approx(flops(real), rel=1e-3)
    assert parameters(trace) == parameters(real)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_t5_in_half_precision_keeps_what_transformers_keeps(dtype: str, tmp_path: Path) -> None:
    """Infinities are cut off in fp16 alone; norms keep their input twice. The script has images that nobody looks at."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "t5", **T5}))
    real = capture_fake(SCRIPT, [str(path), "plain", dtype], gpu="A100")
    trace = triosim.describe(path, batch=4, sequence=48, dtype=dtype, kernels="eager", gpu="A100")
    assert products(trace) == products(real)
    clamps = [sum(one.name == "aten::clamp" for one in either.operators) for either in (trace, real)]
    assert clamps == [10 if dtype == "float16" else 0] * 2
    images, words = 4 * 3 * 64 * 64 * 4, 4 * 48 * 8
    found = triosim.rank_memory(trace).report(workspace=False).peak_live
    assert abs(found + images - analyse(real, workspace=False).peak_live) <= words


def test_autocast_computes_the_responses_of_a_convnext_in_fp32(tmp_path: Path) -> None:
    """The norm is in fp32, and so is all that is multiplied by it: most of what the backward pass needs."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "convnextv2", **CONVNEXT}))
    real = capture_fake(SCRIPT, [str(path), "bfloat16"], gpu="A100")
    trace = triosim.describe(path, batch=4, dtype="bfloat16", precision="mixed", kernels="eager", gpu="A100")

    def written(of: Trace) -> Counter[tuple[str, str]]:
        names = ("aten::linalg_vector_norm", "aten::mul", "aten::div", "aten::masked_fill", "aten::masked_fill_")
        found = (one for one in of.operators if one.layer.endswith("grn") and one.name in names)
        return Counter((one.name.removesuffix("_"), one.outputs[0].dtype) for one in found)

    assert written(trace) == written(real)
    assert written(trace)["aten::linalg_vector_norm", "float32"] == 4  # a layer


def test_a_gpt_is_described_as_megatron_trains_it() -> None:
    real = capture_fake(SCRIPT.with_name("train_megatron.py"), gpu="A100")
    model = GPT(layers=2, hidden=128, heads=4, vocab=512, sequence=48)
    options: dict[str, Any] = {"dtype": "fp16", "attention": "math", "optimizer": "fused-adamw", "gpu": "A100"}
    trace = triosim.describe(model, batch=4, kernels="eager", **options)
    assert products(trace) == products(real)
    assert flops(trace) == pytest.approx(flops(real), rel=1e-3)
    assert parameters(trace) == parameters(real)
    assert trace.seconds == pytest.approx(real.seconds, rel=0.02)
    names = [Counter(one.name for one in either.operators if one.seconds) for either in (trace, real)]
    assert names[1] - names[0] == {"aten::randint": 1}
    assert not names[0] - names[1]
    fused = triosim.describe(model, batch=4, **options)
    assert flops(fused) == flops(trace)
