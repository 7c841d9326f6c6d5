"""What tensor parallelism divides does not change where sizes happen to be equal, for every family that can be described.

A model is described twice: with sizes that are all different, and with drawn ones of which many are equal (the tokens and the
hidden size, heads and samples, the vocabulary and the hidden size, a folded batch and the inner features). The same
dimensions of the same operators must be divided, in eager and compiled steps, and in eight bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from traces import collectives_of, draw, planned

from triosim import describe
from triosim.models import GPT, T5, Bert, DeepSeek, Gemma, Llama
from triosim.models.architectures.model import Model
from triosim.trace import Tensor, Trace


@dataclass(frozen=True)
class Sizes:
    """Samples, tokens of one, heads, features of one, inner features, words."""

    batch: int
    tokens: int
    heads: int
    width: int
    inner: int
    words: int

    @property
    def hidden(self) -> int:
        return self.heads * self.width


#: No two of them, nor of their products that occur, are equal.
DIFFERENT = Sizes(batch=6, tokens=224, heads=20, width=48, inner=1696, words=2272)
#: The tokens, the inner features and the words are as many as the hidden size; as many heads as samples.
ALL_EQUAL = Sizes(batch=8, tokens=128, heads=8, width=16, inner=128, words=128)


def equal_sizes() -> st.SearchStrategy[Sizes]:
    """Sizes of a model of 128 features, or of 256 with 16 heads of 16, each equal to another one or twice that."""

    def of(heads: int, batch: int, tokens: int, inner: str, words: int) -> Sizes:
        hidden = 16 * heads
        length = min(tokens * hidden, 256)
        features = {"hidden": hidden, "twice": 2 * hidden, "samples": batch * length, "tokens": length}[inner]
        return Sizes(batch, length, heads, 16, features, words * hidden)

    return st.builds(
        of,
        heads=st.sampled_from((8, 16)),
        batch=st.sampled_from((2, 4, 8, 16)),
        tokens=st.sampled_from((1, 2)),
        inner=st.sampled_from(("hidden", "twice", "samples", "tokens")),
        words=st.sampled_from((1, 2, 4)),
    )


def llama(sizes: Sizes, **others: Any) -> Llama:
    of = {"kv_heads": sizes.heads, "feed_forward": sizes.inner, "sequence": sizes.tokens}
    return Llama(layers=1, hidden=sizes.hidden, heads=sizes.heads, vocab=sizes.words, **{**of, **others})


def common(sizes: Sizes) -> dict[str, Any]:
    return {
        "layers": 1,
        "hidden": sizes.hidden,
        "heads": sizes.heads,
        "feed_forward": sizes.inner,
        "vocab": sizes.words,
        "sequence": sizes.tokens,
    }


FAMILIES: dict[str, Callable[[Sizes], Model]] = {
    "llama": llama,
    "grouped": lambda z: llama(z, kv_heads=z.heads // 2, tied_embeddings=True),
    "qwen2": lambda z: llama(z, qkv_bias=True),
    "qwen3": lambda z: llama(z, qk_norm=True, head_dim=z.width // 2),
    "torchtitan": lambda z: llama(z, style="torchtitan"),
    "mixtral": lambda z: llama(z, experts=4),
    "gpt": lambda z: GPT(**common(z)),
    "gpt2": lambda z: GPT(**common(z), style="huggingface"),
    "gemma": lambda z: Gemma(**common(z), kv_heads=z.heads // 2, head_dim=z.width),
    "gemma2": lambda z: Gemma(**common(z), kv_heads=z.heads // 2, head_dim=z.width, capped=True),
    "bert": lambda z: Bert(**common(z), positions=z.tokens),
    "t5": lambda z: T5(**common(z), head_dim=z.width),
    "t5-gated": lambda z: T5(**common(z), head_dim=z.width, gated=True, tied_embeddings=False),
    "deepseek": lambda z: DeepSeek(
        **{**common(z), "layers": 2}, expert_width=z.inner // 2, experts=8, experts_per_token=2, groups=2, dense_layers=1,
        query_rank=48, kv_rank=80, nope_dim=z.width, rope_dim=z.width // 2, value_dim=z.width,
    ),
}  # fmt: skip
KINDS = [("eager", "plain"), ("eager", "fp8"), ("compiled", "plain"), ("compiled", "fp8")]


@cache
def step(family: str, sizes: Sizes, kernels: Any, products: Any, attention: Any = "flash") -> Trace:
    return describe(
        FAMILIES[family](sizes),
        batch=sizes.batch,
        sequence=sizes.tokens,
        kernels=kernels,
        products=products,
        attention=attention,
    )


def divided(trace: Trace, **options: Any) -> list[Any]:
    """Each operator of a rank, with the dimensions of its tensors of which the rank has half."""
    whole = {operator.id: operator for operator in trace.operators}

    def places(tensor: Tensor, of: Tensor) -> list[int]:
        return [place for place, pair in enumerate(zip(tensor.shape, of.shape, strict=True)) if pair[0] != pair[1]]

    found: list[Any] = []
    for one in planned(trace, "tp", 2, **options).program.operators:
        like = whole.get(one.id)
        if like is None and one.name == "aten::clone":
            continue  # DTensor's copies along the sequence: there are fewer of one sample
        pairs = zip((*one.inputs, *one.outputs), (*like.inputs, *like.outputs), strict=False) if like else ()
        found.append((one.name, one.layer, one.phase, [places(tensor, of) for tensor, of in pairs]))
    return found


@cache
def as_usual(family: str, kernels: str, products: str, attention: str, options: tuple[tuple[str, Any], ...]) -> Any:
    trace = step(family, DIFFERENT, kernels, products, attention)
    return [one.name for one in trace.operators], divided(trace, **dict(options))


def is_divided_as_usual(family: str, sizes: Sizes, kernels: str, products: str, attention: str, **options: Any) -> bool:
    trace = step(family, sizes, kernels, products, attention)
    names, usual = as_usual(family, kernels, products, attention, tuple(options.items()))
    assert [one.name for one in trace.operators] == names  # the comparison is of the same step
    return divided(trace, **options) == usual


#: Without those whose compiled kernels depend on the sizes: a rotation of as many features as an expert has.
STEPS = [(family, *kind) for family in FAMILIES for kind in KINDS if (family, kind[0]) != ("deepseek", "compiled")]


@pytest.mark.parametrize(("family", "kernels", "products"), STEPS)
def test_the_same_is_divided_where_all_sizes_are_equal(family: str, kernels: str, products: str) -> None:
    options = {"tp_style": "megatron", "sequence_parallel": True}
    assert is_divided_as_usual(family, ALL_EQUAL, kernels, products, "flash", **options)


@settings(max_examples=15)
@given(step=st.sampled_from(STEPS), sizes=equal_sizes(), style=st.sampled_from(("megatron", "sequence", "gather")))
@example(("llama", "compiled", "fp8"), replace(ALL_EQUAL, batch=1, inner=256), "sequence")
@pytest.mark.slow
def test_the_same_is_divided_whatever_sizes_are_equal(step: tuple[str, str, str], sizes: Sizes, style: str) -> None:
    options = {"tp_style": "gather" if style == "gather" else "megatron", "sequence_parallel": style == "sequence"}
    assert is_divided_as_usual(step[0], sizes, *step[1:], "flash", **options)


@pytest.mark.parametrize("kernels", ["eager", "compiled"])
@pytest.mark.parametrize("family", ["grouped", "gpt2"])
def test_the_same_is_divided_where_attention_has_its_scores_in_memory(family: str, kernels: str) -> None:
    assert is_divided_as_usual(family, ALL_EQUAL, kernels, "plain", "math", tp_style="megatron")


@pytest.mark.parametrize("policy", ["full", "selective", "save=mm,attention"])
@pytest.mark.parametrize("products", ["plain", "fp8"])
def test_a_step_that_computes_again_communicates_the_same_whatever_sizes_are_equal(policy: str, products: str) -> None:
    """As many collectives of each kind, one after the other."""

    def kinds(sizes: Sizes) -> list[str]:
        trace = step("grouped", sizes, "compiled", products)
        plan = planned(trace, "tp", 2, tp_style="megatron", sequence_parallel=True, recompute=policy)
        return [kind for kind, _ in collectives_of(draw(plan.tasks(0)))]

    assert kinds(ALL_EQUAL) == kinds(DIFFERENT)


@pytest.mark.parametrize("parallel", ["tp=2,pp=2", "tp=2,fsdp=2"])
def test_a_key_as_wide_as_there_are_tokens_is_divided_in_combinations(parallel: str) -> None:
    trace = describe(
        Llama(layers=2, hidden=256, heads=8, kv_heads=2, feed_forward=512, vocab=512),
        batch=2,
        sequence=64,  # as many as two heads of keys have features
        kernels="compiled",
        products="fp8",
    )
    options: dict[str, Any] = {"stages": ("model.layers.1",)} if "pp" in parallel else {}
    plan = planned(trace, parallel, tp_style="megatron", sequence_parallel=True, **options)
    keys = [
        operator
        for operator in plan.program.operators
        if operator.layer.endswith("k_proj") and "scaled_mm" in operator.name and operator.phase == "forward"
    ]
    tokens = 64 if "pp" in parallel else 2 * 64  # of a micro-batch
    assert [operator.outputs[0].shape for operator in keys] == [(tokens, 64 // 2)] * 2
