"""Weighing a point: a few micro-batches need the memory of many, and the bound is that of all."""

from __future__ import annotations

import random

import pytest

from tests.search_spaces import GPT, MIXTURE, space
from triosim.configuration_search.bounds import IdleCollectives, lower_bound
from triosim.configuration_search.evaluation import Weigh, shortened
from triosim.configuration_search.spaces.rules import validity_of
from triosim.pipeline.planning import plan
from triosim.pipeline.pricing import price
from triosim.pipeline.reading import read


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
