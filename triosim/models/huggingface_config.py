"""Models from a ``config.json`` of Hugging Face transformers, whose ``model_type`` names the architecture.

Keys that are left out have the defaults of transformers; sizes that tell models apart must be there. Every key of ``_KEYS`` is
checked for its type, whether the architecture reads it or not.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from triosim.errors import TriosimError, nearest
from triosim.input_files.reading import read_json
from triosim.models.architectures.bert import Bert
from triosim.models.architectures.clip import Clip, Tower
from triosim.models.architectures.convnext import ConvNext
from triosim.models.architectures.deepseek import DeepSeek
from triosim.models.architectures.gemma import Gemma
from triosim.models.architectures.gpt import GPT
from triosim.models.architectures.llama import Llama
from triosim.models.architectures.model import Model
from triosim.models.architectures.t5 import T5
from triosim.models.architectures.vit import ViT

_Type = Literal["size", "sizes", "number", "flag", "text", "mapping"]
#: Of each type: the Python types of its values, what a value is called, and what to give instead.
_TYPES: Mapping[_Type, tuple[tuple[type, ...], str, str | None]] = {
    "size": ((int,), "a size", "give a whole number"),
    "sizes": ((list,), "a list of sizes", "give a list of whole numbers"),
    "number": ((int, float), "a number", None),
    "flag": ((bool,), "true or false", None),
    "text": ((str,), "text", None),
    "mapping": ((dict,), "a mapping", "give keys and their values"),
}
#: The keys that descriptions of some architecture read.
_KEYS: Mapping[_Type, str] = {
    "size": "n_layer n_embd n_head n_positions n_inner vocab_size max_position_embeddings num_hidden_layers hidden_size"
    " num_attention_heads num_key_value_heads intermediate_size head_dim num_local_experts num_experts_per_tok"
    " n_routed_experts n_shared_experts moe_intermediate_size n_group topk_group first_k_dense_replace q_lora_rank"
    " kv_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim type_vocab_size projection_dim num_labels num_layers"
    " d_model num_heads d_kv d_ff relative_attention_num_buckets patch_size image_size",
    "sizes": "depths hidden_sizes",
    "number": "resid_pdrop hidden_dropout_prob dropout_rate",
    "flag": "tie_word_embeddings",
    "text": "feed_forward_proj",
    "mapping": "text_config vision_config id2label",
}


class Config:
    """The keys of a config, read with checks that name the file. Its methods raise ``TriosimError``."""

    def __init__(self, content: Mapping[str, Any], path: str) -> None:
        self._content = content
        self.path = path

    def value(self, key: str, type: _Type, default: Any = None, fix: str | None = None) -> Any:
        """Return the value of a key, which has a type; null stands for the default."""
        value = self._content.get(key)
        if value is None:
            return default
        known, called, usual = _TYPES[type]
        if not isinstance(value, known) or (isinstance(value, bool) and type != "flag") or value == []:
            raise TriosimError(f"{key}: {value!r:.40} is not {called}", where=self.path, fix=fix or usual)
        return value

    def whole(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        """Return a whole number of ``least`` or more; it must be there where it has no default."""
        fix = f"give a whole number of {least} or more"
        value = self.value(key, "size", default, fix)
        if value is None:
            raise TriosimError(
                f"the key '{key}' is missing", where=self.path, fix="add it: it gives a size of the model"
            )
        if value < least:
            raise TriosimError(f"{key}: {value} is not a size", where=self.path, fix=fix)
        return int(value)

    def optional(self, key: str) -> int | None:
        """Return a positive whole number, or None where the config has none."""
        return None if self._content.get(key) is None else self.whole(key)

    def probability(self, key: str, default: float) -> float:
        """Return a probability."""
        value = float(self.value(key, "number", default))
        if not 0 <= value < 1:
            raise TriosimError(f"{key}: {value:g} is not a probability", where=self.path, fix="give 0 or more, below 1")
        return value

    def multiple(self, key: str, number: int, of: str, parts: int) -> int:
        """Return the value of a key, which the value of another must divide."""
        if number % parts:
            said = f"{key}: {number} is not divisible by {parts}, {of}"
            raise TriosimError(said, where=self.path, fix="change one of them")
        return number

    def at_most(self, key: str, number: int, of: str, most: int) -> int:
        """Return the value of a key, which must not exceed that of another."""
        if number > most:
            raise TriosimError(f"{key}: {number} is more than {most}, {of}", where=self.path, fix="change one of them")
        return number

    def kv_heads(self, heads: int) -> int:
        """Return how many heads of keys and values as many heads of queries share evenly."""
        key = "num_key_value_heads"
        shared = self.whole(key, heads)
        self.multiple("num_attention_heads", heads, f"the {key}", shared)
        return shared

    def rotary(self, key: str, width: int) -> int:
        """Return the size of rotary embedding, which rotates pairs of features."""
        return self.multiple(key, width, "the features of a rotated pair", 2)

    def classes(self) -> int:
        """Return how many classes a classifier tells apart: two, where the config names none."""
        return len(self.value("id2label", "mapping", {})) or self.whole("num_labels", 2)

    def wholes(self, key: str, default: Sequence[int]) -> tuple[int, ...]:
        """Return positive whole numbers, one after the other."""
        value = self.value(key, "sizes", default)
        parts = Config({str(index): one for index, one in enumerate(value)}, f"{self.path}: {key}")
        return tuple(parts.whole(str(index)) for index in range(len(value)))

    def part(self, key: str) -> Config:
        """Return the config of a part of the model; where there is none, all its sizes are those of transformers."""
        return Config(self.value(key, "mapping", {}), f"{self.path}: {key}")

    def check_types(self) -> None:
        """Check the types of all known keys, also of those that the architecture ignores."""
        for type, keys in _KEYS.items():
            for key in keys.split():
                self.value(key, type)
        for key in ("text_config", "vision_config"):
            if self._content.get(key):
                self.part(key).check_types()


def read(path: str | os.PathLike[str]) -> Model:
    """Return the model that a config describes. Raises ``TriosimError`` that names the file and the key."""
    where = str(path)
    content = read_json(Path(path), TriosimError)
    if not isinstance(content, dict):
        raise TriosimError("is not a config", where=where, fix="it must be a mapping of keys to sizes")
    kind, known = content.get("model_type"), f"known: {', '.join(_MAKERS)}"
    if kind is None:
        raise TriosimError("the key 'model_type' is missing", where=where, fix=known)
    if not isinstance(kind, str):
        raise TriosimError(f"model_type: {kind!r:.40} is not a name", where=where, fix=known)
    if kind not in _MAKERS:
        raise TriosimError(f"model_type '{kind}' is not known", where=where, fix=nearest(kind, _MAKERS))
    config = Config(content, where)
    model = _MAKERS[kind](config, kind)
    config.check_types()
    return model


def _sizes(config: Config, defaults: Sequence[int | None] = (None,) * 4) -> dict[str, Any]:
    """Return the sizes that most transformers have under the same keys."""
    keys = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")
    found = [config.whole(key, default) for key, default in zip(keys, defaults, strict=True)]
    return dict(zip(("layers", "hidden", "heads", "feed_forward"), found, strict=True))


def _evenly_shared(config: Config, defaults: Sequence[int | None] = (None,) * 4) -> dict[str, Any]:
    """Return the same sizes of a model whose heads share its hidden features evenly."""
    found = _sizes(config, defaults)
    config.multiple("hidden_size", found["hidden"], "the num_attention_heads", found["heads"])
    return found


def _gpt2(config: Config, kind: str) -> Model:
    layers, hidden, heads = (config.whole(key) for key in ("n_layer", "n_embd", "n_head"))
    return GPT(
        layers=layers,
        hidden=config.multiple("n_embd", hidden, "the n_head", heads),
        heads=heads,
        vocab=config.whole("vocab_size", 50257),
        sequence=config.whole("n_positions", 1024),
        feed_forward=config.optional("n_inner"),
        dropout=config.probability("resid_pdrop", 0.1),
        style="huggingface",
        name=kind,
    )


def _llama(config: Config, kind: str) -> Model:
    width = config.optional("head_dim")
    sizes = _sizes(config) if width else _evenly_shared(config)
    key = "head_dim" if width else "hidden_size / num_attention_heads"
    config.rotary(key, width or sizes["hidden"] // sizes["heads"])
    experts = config.whole("num_local_experts", 8) if kind == "mixtral" else 0
    chosen = config.whole("num_experts_per_tok", 2)
    if experts:
        config.at_most("num_experts_per_tok", chosen, "the num_local_experts", experts)
    return Llama(
        **sizes,
        kv_heads=config.kv_heads(sizes["heads"]),
        vocab=config.whole("vocab_size"),
        sequence=config.whole("max_position_embeddings", 4096),
        head_dim=width,
        tied_embeddings=config.value("tie_word_embeddings", "flag", False),
        qkv_bias=kind == "qwen2",
        qk_norm=kind == "qwen3",
        experts=experts,
        experts_per_token=chosen,
        name=kind,
    )


def _gemma(config: Config, kind: str) -> Model:
    sizes = _sizes(config)
    return Gemma(
        **sizes,
        kv_heads=config.kv_heads(sizes["heads"]),
        head_dim=config.rotary("head_dim", config.whole("head_dim", 256)),
        vocab=config.whole("vocab_size", 256000),
        sequence=config.whole("max_position_embeddings", 8192),
        capped=kind == "gemma2",
        tied_embeddings=config.value("tie_word_embeddings", "flag", True),
        name=kind,
    )


def _clip(config: Config, kind: str) -> Model:
    vision, text = config.part("vision_config"), config.part("text_config")
    positions = text.whole("max_position_embeddings", 77)
    return Clip(
        vision=Tower(**_evenly_shared(vision, (12, 768, 12, 3072))),
        text=Tower(**_evenly_shared(text, (12, 512, 8, 2048))),
        patch=vision.whole("patch_size", 32),
        image=vision.whole("image_size", 224),
        vocab=text.whole("vocab_size", 49408),
        positions=positions,
        projection_dim=config.whole("projection_dim", 512),
        sequence=positions,
    )


def _convnext(config: Config, kind: str) -> Model:
    blocks, widths = config.wholes("depths", (3, 3, 9, 3)), config.wholes("hidden_sizes", (96, 192, 384, 768))
    if len(blocks) != len(widths):
        said = f"depths: {len(blocks)} stages, hidden_sizes: {len(widths)}"
        raise TriosimError(said, where=config.path, fix="give one of each for every stage")
    return ConvNext(
        blocks=blocks,
        widths=widths,
        version=2 if kind == "convnextv2" else 1,
        patch=config.whole("patch_size", 4),
        image=config.whole("image_size", 224),
        classes=config.classes(),
        name=kind,
    )


def _deepseek(config: Config, kind: str) -> Model:
    experts, groups = config.whole("n_routed_experts"), config.whole("n_group", 1)
    chosen, kept = config.whole("num_experts_per_tok"), config.whole("topk_group", 1)
    return DeepSeek(
        **_sizes(config),
        expert_width=config.whole("moe_intermediate_size"),
        experts=config.multiple("n_routed_experts", experts, "the n_group", groups),
        experts_per_token=config.at_most("num_experts_per_tok", chosen, "the n_routed_experts", experts),
        groups=groups,
        groups_per_token=config.at_most("topk_group", kept, "the n_group", groups),
        shared_experts=config.whole("n_shared_experts", 1),
        dense_layers=config.whole("first_k_dense_replace", 0, least=0),
        query_rank=config.optional("q_lora_rank"),
        kv_rank=config.whole("kv_lora_rank"),
        nope_dim=config.whole("qk_nope_head_dim"),
        rope_dim=config.rotary("qk_rope_head_dim", config.whole("qk_rope_head_dim")),
        value_dim=config.whole("v_head_dim"),
        vocab=config.whole("vocab_size"),
        sequence=4096,
    )


def _bert(config: Config, kind: str) -> Model:
    positions = config.whole("max_position_embeddings", 512)
    return Bert(
        **_evenly_shared(config),
        vocab=config.whole("vocab_size", 30522),
        positions=positions,
        token_types=config.whole("type_vocab_size", 2),
        sequence=min(positions, 512),
        dropout=config.probability("hidden_dropout_prob", 0.1),
    )


def _t5(config: Config, kind: str) -> Model:
    return T5(
        layers=config.whole("num_layers"),
        hidden=config.whole("d_model"),
        heads=config.whole("num_heads"),
        head_dim=config.whole("d_kv"),
        feed_forward=config.whole("d_ff"),
        vocab=config.whole("vocab_size", 32128),
        buckets=config.whole("relative_attention_num_buckets", 32),
        gated=config.value("feed_forward_proj", "text", "relu").startswith("gated"),
        tied_embeddings=config.value("tie_word_embeddings", "flag", True),
        dropout=config.probability("dropout_rate", 0.1),
    )


def _vit(config: Config, kind: str) -> Model:
    return ViT(
        **_evenly_shared(config),
        patch=config.whole("patch_size", 16),
        image=config.whole("image_size", 224),
        classes=config.classes(),
        dropout=config.probability("hidden_dropout_prob", 0.0),
    )


_MAKERS: Mapping[str, Callable[[Config, str], Model]] = {
    "gpt2": _gpt2,
    **dict.fromkeys(("llama", "mistral", "mixtral", "qwen2", "qwen3"), _llama),
    **dict.fromkeys(("gemma", "gemma2"), _gemma),
    "clip": _clip,
    **dict.fromkeys(("convnext", "convnextv2"), _convnext),
    "deepseek_v3": _deepseek,
    "bert": _bert,
    "t5": _t5,
    "vit": _vit,
}
