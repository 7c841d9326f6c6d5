"""Weighing a point: a few micro-batches need the memory of many, and the bound is that of all."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.search_spaces import GPT, LLAMA, MIXTURE, space
from triosim.configuration_search.evaluation import Weigh, shortened
from triosim.configuration_search.spaces.rules import validity_of
from triosim.extrapolators.core import plan as planning
from triosim.extrapolators.core.program import kept_programs
from triosim.extrapolators.core.program.kept_programs import Kept, KeptPrograms
from triosim.extrapolators.pipeline import pp
from triosim.memory.liveness import micro_batch_lifetimes, module_inputs, rank_lifetimes
from triosim.pipeline.bounds import IdleCollectives, lower_bound
from triosim.pipeline.planning import plan
from triosim.pipeline.pricing import price
from triosim.pipeline.reading import read


@pytest.mark.parametrize(
    ("model", "varied"),
    [
        (
            GPT,
            "pp=1,2,4 tp=1,2 virtual_stages=1,2 data_parallel=ddp,zero1,fsdp micro_batch_size=1,2 recompute=none,full",
        ),
        (
            GPT,
            "pp=1,2 tp=1,2 sequence_parallel=no,yes schedule=1f1b,zero-bubble data_parallel=zero1,zero2 recompute=selective",
        ),
        (LLAMA, "pp=2,4 tp=1,2 gradient_dtype=float32,bfloat16 data_parallel=ddp,zero1"),
        (MIXTURE, "pp=1,2 ep=1,2 data_parallel=ddp,zero1,fsdp micro_batch_size=1"),
    ],
)
def test_what_points_share_changes_none_of_them(monkeypatch: pytest.MonkeyPatch, model: str, varied: str) -> None:
    run = space(model, varied, global_batch_size=32)
    valid = validity_of(run).valid
    drawn = random.Random(2).sample(valid, min(20, len(valid)))
    shared = Weigh(run)
    found = [shared(point) for point in drawn]
    monkeypatch.setattr(planning, "KEPT", KeptPrograms(most=0))
    kept: list[tuple[Any, str]] = [(kept_programs, "_OPTIMIZERS"), (rank_lifetimes, "_LIFETIMES")]
    kept += [(pp, name) for name in ("_STAGES", "_OPTIMIZERS", "_FLOWS", "_EXCHANGES")]
    kept += [(micro_batch_lifetimes, "_KNOWN"), (module_inputs, "_KEPT")]
    for where, name in kept:
        monkeypatch.setattr(where, name, Kept[Any](0))
    for point, together in zip(drawn, found, strict=True):
        alone = Weigh(run)(point)
        assert (alone.state, alone.memory) == (together.state, together.memory)  # to the byte
        assert alone.at_bound is not None
        assert together.at_bound is not None
        assert alone.at_bound.step_time_s == pytest.approx(together.at_bound.step_time_s, rel=1e-12)


@pytest.mark.parametrize(
    ("model", "varied"),
    [
        (
            GPT,
            "pp=1,2,4 tp=1,2 schedule=gpipe,1f1b,zero-bubble data_parallel=ddp,fsdp micro_batch_size=1 recompute=none,full",
        ),
        (GPT, "pp=1,2,4 virtual_stages=1,2 data_parallel=zero1,zero2 micro_batches=4*pp,8*pp recompute=none,selective"),
        (MIXTURE, "pp=1,2 ep=1,2 cp=1,2 data_parallel=ddp,fsdp micro_batch_size=1"),
    ],
)
def test_a_few_micro_batches_need_the_memory_of_many(model: str, varied: str) -> None:
    run, short = space(model, varied, global_batch_size=128), 0
    for point in random.Random(1).sample(validity_of(run).valid, 8):
        config = run.config(point)
        whole = plan(price(read(run.subject.source, config), config), config)
        weighed = Weigh(run)(point)
        assert weighed.memory is not None
        assert weighed.at_bound is not None
        assert weighed.memory.peak_bytes == whole.memory.fullest.peak_bytes
        bound = lower_bound(whole, IdleCollectives(whole.new_network()))
        assert weighed.at_bound.step_time_s == pytest.approx(bound, rel=1e-12)
        assert weighed.at_bound.samples_per_s == pytest.approx(128 / bound)
        short += shortened(config, run.layout(point)) is not None
    assert short


def test_gpipe_holds_all_micro_batches_so_none_is_left_out() -> None:
    run = space(GPT, "pp=2 schedule=gpipe,1f1b micro_batch_size=1", global_batch_size=128)
    found = [shortened(run.config(point), run.layout(point)) for point in run.points()]
    assert found[0] is None
    assert found[1] is not None
    assert found[1].config.global_batch_size == 4 * 6  # four replicas, of three times as many micro-batches as stages
    assert found[1].schedule.micro_batches == 128 // 4
