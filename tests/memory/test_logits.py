"""Logits, and what the loss makes of them, are there until the loss is: Python refers to them."""

from __future__ import annotations

from typing import Any

import pytest

import triosim
from triosim.memory.liveness.lifetimes import Lifetime, lifetimes
from triosim.memory.liveness.logits import kept_for_loss
from triosim.models import Llama
from triosim.trace import Trace

BATCH, TOKENS, WORDS = 4, 16, 512


def llama(**options: Any) -> Trace:
    """A layer of a Llama in 16 bits, whose loss reads a copy of the logits in fp32."""
    model = Llama(layers=1, hidden=32, heads=4, feed_forward=64, vocab=WORDS, sequence=TOKENS)
    return triosim.describe(model, batch=BATCH, dtype="bf16", optimizer="none", **options)


def logits(items: Any) -> list[Lifetime]:
    """What is as large as the logits and born in the forward pass."""
    return [one for one in items if one.layer in ("lm_head", "loss") and one.nbytes >= BATCH * TOKENS * WORDS * 2]


@pytest.mark.parametrize("parallel", [None, "dp=2"])
def test_logits_and_their_copy_live_until_the_loss_is_computed(parallel: str | None) -> None:
    trace = llama()
    loss = next(i for i, one in enumerate(trace.operators) if one.name == "aten::nll_loss_forward")
    step = lifetimes(trace) if parallel is None else triosim.rank_memory(trace, parallel).report().usage.lifetimes
    found = {one.dtype: one for one in logits(step.items) if one.operator < loss and one.last_operator == loss}
    assert found["bfloat16"].nbytes == BATCH * TOKENS * WORDS * 2
    assert found["float32"].nbytes == BATCH * TOKENS * WORDS * 4


def test_the_network_itself_is_not_kept_for_the_loss() -> None:
    forward = [one for one in llama().operators if one.phase == "forward"]
    ((_, kept),) = kept_for_loss(reversed(forward)).items()
    makers = {one.layer for one in forward if any(t.storage in kept for t in one.outputs)}
    assert makers == {"lm_head", "loss"}


def test_without_a_loss_nothing_is_kept() -> None:
    forward = [one for one in llama().operators if one.phase == "forward" and one.layer != "loss"]
    assert kept_for_loss(reversed(forward)) == {}
