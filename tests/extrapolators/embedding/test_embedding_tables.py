"""Embedding tables over ranks: what is sent, when it is waited for, what each rank holds, and what is refused."""

from __future__ import annotations

import pytest
from traces import draw, planned

import triosim
from triosim.errors import OptionError
from triosim.models import DLRM
from triosim.tasks import AllToAll, Compute, Wait
from triosim.trace import Trace

BATCH, TABLES, ROWS, WIDTH, LOOKUPS = 64, 8, 10_000, 32, 4


def dlrm() -> Trace:
    model = DLRM(bottom=(512, 256, WIDTH), top=(256, 1), tables=TABLES, rows=ROWS, lookups=LOOKUPS)
    return triosim.describe(model, batch=BATCH, dtype="float32", gpu="A100")


def test_indices_go_to_the_tables_and_pooled_rows_come_back_and_their_gradients_go_there() -> None:
    result = triosim.simulate(dlrm(), "ddp=4,tables=4", host_overhead="none")
    sent = {row.bytes: row.count for row in result.data.collectives if row.axis == "tables"}
    assert sent == {BATCH * TABLES * LOOKUPS * 8: 1, BATCH * TABLES * WIDTH * 4: 2}
    reduced = sum(row.bytes * row.count for row in result.data.collectives if row.kind == "all_reduce")
    pairs = (TABLES + 1) * TABLES // 2
    mlps = 14 * 512 + 513 * 256 + 257 * WIDTH + (WIDTH + pairs + 1) * 256 + 257
    assert reduced == 4 * mlps  # and no gradient of a table


def test_every_rank_looks_up_as_many_rows_as_alone() -> None:
    alone = triosim.simulate(dlrm(), "single", host_overhead="none").data.ranks[0].compute_s
    result = triosim.simulate(dlrm(), "ddp=4,tables=4", host_overhead="none")
    assert result.data.ranks[0].compute_s == pytest.approx(alone, rel=0.15)  # beside transfers it is slower


def test_pooled_rows_are_sent_while_the_bottom_mlp_runs() -> None:
    tasks = draw(planned(dlrm(), "ddp=4,tables=4").tasks(0))
    exchanges = [place for place, task in enumerate(tasks) if isinstance(task, AllToAll)]
    forward = exchanges[1]
    waits = [place for place, task in enumerate(tasks) if isinstance(task, Wait) and place > forward]
    between = [task for task in tasks[forward : waits[0]] if isinstance(task, Compute)]
    layers = {operator.layer.partition(".")[0] for task in between for operator in task.operators}
    assert "bottom_mlp" in layers
    assert "top_mlp" not in layers


@pytest.mark.parametrize(("ranks", "share"), [(2, 2), (8, 8), (16, 16)])
def test_a_rank_holds_its_share_of_the_tables(ranks: int, share: int) -> None:
    """Sixteen ranks have half of the columns of a table each."""
    whole = triosim.rank_memory(dlrm(), "single").fullest.by_category["parameter"]
    part = triosim.rank_memory(dlrm(), f"ddp={ranks},tables={ranks}").fullest.by_category["parameter"]
    tables = TABLES * ROWS * WIDTH * 4
    assert whole - part == pytest.approx(tables * (1 - 1 / share), rel=1e-3)


def test_sharded_data_parallelism_shards_the_mlps_alone() -> None:
    result = triosim.simulate(dlrm(), "fsdp=4,tables=4")
    gathered = sum(row.bytes * row.count for row in result.data.collectives if row.kind == "all_gather")
    assert gathered < TABLES * ROWS * WIDTH


@pytest.mark.parametrize(
    ("parallel", "error"),
    [
        ("ddp=4", "those of replicas would differ; divide them among the replicas: ddp=8,tables=8"),
        ("ddp=8,tables=4", "those of 2 groups of GPUs would differ; divide them among all 8: tables=8"),
        ("ddp=512,tables=512", "8 tables of 32 columns (embeddings) do not divide among 512 GPUs"),
    ],
)
def test_tables_that_would_differ_or_do_not_divide_are_refused(parallel: str, error: str) -> None:
    with pytest.raises(OptionError) as found:
        triosim.rank_memory(dlrm(), parallel)
    assert error in str(found.value)


def test_a_model_without_tables_is_refused() -> None:
    with pytest.raises(OptionError, match="no tables of embeddings whose rows are pooled"):
        triosim.rank_memory("gpt2", "ddp=2,tables=2", gpu="A100")
