"""``--routing`` draws what the routers of transformers return, whatever implementation its experts have."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from typing import Any  # noqa: E402

from triosim.extrapolators.expert.expert_loads import load_of  # noqa: E402
from triosim.tracer.fake_device import FakeDevice  # noqa: E402

SIZES = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
KINDS = {
    "Mixtral": {"num_local_experts": 8, "num_experts_per_tok": 2, "num_key_value_heads": 2},
    "Qwen3Moe": {"num_experts": 8, "num_experts_per_tok": 2, "num_key_value_heads": 2, "moe_intermediate_size": 32},
    "DeepseekV3": {
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "moe_intermediate_size": 32,
    }
    | {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 16, "v_head_dim": 32, "first_k_dense_replace": 0},
}


def model_of(kind: str, experts: str) -> Any:
    config = getattr(transformers, f"{kind}Config")(vocab_size=96, **SIZES, **KINDS[kind])
    config._experts_implementation = experts
    return getattr(transformers, f"{kind}ForCausalLM")(config)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("experts", ["grouped_mm", "eager"])
def test_routers_return_what_is_drawn(kind: str, experts: str) -> None:
    chosen: list[Any] = []
    words = torch.zeros(1, 1024, dtype=torch.int64)
    with FakeDevice("H100-SXM", routing=load_of("zipf=1.2,seed=3", "--routing")) as device:
        model = model_of(kind, experts).cuda().bfloat16()
        router = next(one for name, one in model.named_modules() if name.endswith(".gate"))
        router.register_forward_hook(lambda _, __, result: chosen.append(result[2]))
        device.recorder.begin()
        model(words.cuda()).logits.sum().backward()
        step = device.recorder.end()
        counts = chosen[0].reshape(-1).bincount(minlength=8).tolist()
    assert sum(counts) == 2048
    assert max(counts) > 4 * min(counts)
    assert device.notes == []
    if experts == "eager":
        shapes = [step.tensors[one.inputs[0]].shape for one in step.operators if one.name == "aten::silu"]
        assert [one[0] for one in shapes if one[0] != 1] == [one for one in counts if one]
