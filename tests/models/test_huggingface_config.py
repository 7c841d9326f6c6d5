"""A config that describes no model ends in one line that names the file, the key and what would be right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from triosim.errors import TriosimError
from triosim.models.huggingface_config import read

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 1,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 96,
}
GPT2 = {"model_type": "gpt2", "n_layer": 1, "n_embd": 64, "n_head": 4}
BERT = {**LLAMA, "model_type": "bert"}
DEEPSEEK = {
    **LLAMA,
    "model_type": "deepseek_v3",
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
}
CLIP = {"model_type": "clip", "text_config": {"hidden_size": 512, "num_attention_heads": 8}}
CONVNEXT = {"model_type": "convnext"}


def said(tmp_path: Path, text: str) -> str:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(TriosimError) as caught:
        read(path)
    line = str(caught.value)
    assert line.startswith(f"{path}: ")
    assert "\n" not in line
    return line.removeprefix(f"{path}: ")


@pytest.mark.parametrize(
    ("config", "change", "expected"),
    [
        (LLAMA, {"hidden_size": None}, "the key 'hidden_size' is missing; add it: it gives a size of the model"),
        (LLAMA, {"vocab_size": "96"}, "vocab_size: '96' is not a size; give a whole number of 1 or more"),
        (LLAMA, {"hidden_size": -64}, "hidden_size: -64 is not a size; give a whole number of 1 or more"),
        (LLAMA, {"num_hidden_layers": 0}, "num_hidden_layers: 0 is not a size; give a whole number of 1 or more"),
        (LLAMA, {"intermediate_size": 1.5}, "intermediate_size: 1.5 is not a size"),
        (LLAMA, {"vocab_size": True}, "vocab_size: True is not a size"),
        (LLAMA, {"hidden_size": 63}, "hidden_size: 63 is not divisible by 4, the num_attention_heads; change one of"),
        (LLAMA, {"num_key_value_heads": 3}, "num_attention_heads: 4 is not divisible by 3, the num_key_value_heads"),
        (LLAMA, {"head_dim": 15}, "head_dim: 15 is not divisible by 2"),
        (LLAMA, {"hidden_size": 60}, "hidden_size / num_attention_heads: 15 is not divisible by 2"),
        (LLAMA, {"model_type": "mixtral", "num_experts_per_tok": 9}, "num_experts_per_tok: 9 is more than 8"),
        (LLAMA, {"model_type": "gemma", "num_key_value_heads": 3}, "num_attention_heads: 4 is not divisible by 3"),
        (LLAMA, {"model_type": ["llama"]}, "model_type: ['llama'] is not a name; known: gpt2, llama"),
        (LLAMA, {"model_type": "lama"}, "model_type 'lama' is not known; did you mean 'llama'?"),
        (GPT2, {"n_head": 5}, "n_embd: 64 is not divisible by 5, the n_head"),
        (GPT2, {"resid_pdrop": 1.5}, "resid_pdrop: 1.5 is not a probability; give 0 or more, below 1"),
        (BERT, {"num_attention_heads": 5}, "hidden_size: 64 is not divisible by 5, the num_attention_heads"),
        (BERT, {"hidden_dropout_prob": "0.1"}, "hidden_dropout_prob: '0.1' is not a number"),
        (DEEPSEEK, {"n_routed_experts": 7}, "n_routed_experts: 7 is not divisible by 2, the n_group"),
        (DEEPSEEK, {"topk_group": 3}, "topk_group: 3 is more than 2, the n_group"),
        (DEEPSEEK, {"qk_rope_head_dim": 7}, "qk_rope_head_dim: 7 is not divisible by 2"),
        (DEEPSEEK, {"first_k_dense_replace": -1}, "first_k_dense_replace: -1 is not a size; give a whole number of 0"),
        (LLAMA, {"n_routed_experts": "8"}, "n_routed_experts: '8' is not a size"),  # a key that Llama does not read
        (GPT2, {"tie_word_embeddings": "no"}, "tie_word_embeddings: 'no' is not true or false"),
        (BERT, {"feed_forward_proj": 3}, "feed_forward_proj: 3 is not text"),
        (CLIP, {"text_config": 3}, "text_config: 3 is not a mapping; give keys and their values"),
        (CLIP, {"text_config": {"hidden_size": 500}}, "text_config: hidden_size: 500 is not divisible by 8"),
        (CONVNEXT, {"depths": [1, 1]}, "depths: 2 stages, hidden_sizes: 4; give one of each for every stage"),
        (LLAMA, {"depths": 3}, "depths: 3 is not a list of sizes"),
        (LLAMA, {"id2label": "cat"}, "id2label: 'cat' is not a mapping"),
        (LLAMA, {"vision_config": {"patch_size": "16"}}, "vision_config: patch_size: '16' is not a size"),
        (CONVNEXT, {"depths": []}, "depths: [] is not a list of sizes"),
        (CONVNEXT, {"depths": 3}, "depths: 3 is not a list of sizes; give a list of whole numbers"),
    ],
)
def test_a_broken_key_is_named_with_what_would_be_right(
    tmp_path: Path, config: dict[str, Any], change: dict[str, Any], expected: str
) -> None:
    assert said(tmp_path, json.dumps({**config, **change})).startswith(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "is empty"),
        ("{", "line 1 column 2: is not JSON"),
        ("[]", "is not a config"),
        ("{}", "the key 'model_type' is missing"),
    ],
)
def test_what_is_no_config_is_named(tmp_path: Path, text: str, expected: str) -> None:
    assert said(tmp_path, text).startswith(expected)


def test_the_configs_that_are_broken_here_describe_models_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    for config in (LLAMA, GPT2, BERT, DEEPSEEK, CLIP, CONVNEXT):
        path.write_text(json.dumps(config))
        assert read(path).name
