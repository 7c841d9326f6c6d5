"""DLRM, described: its sizes, what its look-ups read and write, and its memory, worked out by hand."""

from __future__ import annotations

from itertools import pairwise

import pytest

import triosim
from triosim.models import DLRM
from triosim.models.catalogue import find
from triosim.operators.features import flops, input_bytes, is_pooled_look_up, output_bytes
from triosim.trace import Trace

BATCH, TABLES, ROWS, WIDTH, LOOKUPS = 32, 6, 1000, 16, 5
BOTTOM, TOP, DENSE = (64, WIDTH), (128, 1), 13


def step() -> Trace:
    model = DLRM(bottom=BOTTOM, top=TOP, tables=TABLES, rows=ROWS, lookups=LOOKUPS, dense=DENSE)
    return triosim.describe(model, batch=BATCH, dtype="float32", gpu="A100")


def mlp_parameters() -> int:
    """The top MLP reads the dense vector and the products of all pairs of seven vectors."""
    mlps = (DENSE, *BOTTOM), (WIDTH + 7 * 6 // 2, *TOP)
    return sum((into + 1) * out for widths in mlps for into, out in pairwise(widths))


def test_the_mlps_have_the_papers_parameters_and_only_they_have_gradients() -> None:
    trace = step()
    parameters = {t.storage: t.numel for op in trace.operators for t in op.inputs if t.category == "parameter"}
    assert sum(parameters.values()) == mlp_parameters() + TABLES * ROWS * WIDTH
    memory = triosim.rank_memory(trace, "single")
    assert memory.fullest.by_category["parameter"] == pytest.approx(4 * sum(parameters.values()), rel=0.02)
    assert memory.fullest.by_category["gradient"] < 4 * TABLES * ROWS * WIDTH / 2
    states = 4 * TABLES * ROWS + 2 * 4 * mlp_parameters()  # row-wise Adagrad, and AdamW
    assert memory.fullest.by_category["optimizer_state"] == pytest.approx(states, rel=0.05)  # in blocks of 512


def test_a_look_up_reads_the_rows_that_it_adds_and_its_update_reads_and_writes_them() -> None:
    forward, update = (op for op in step().operators if is_pooled_look_up(op))
    rows, indices, pooled = BATCH * TABLES * LOOKUPS, BATCH * TABLES * LOOKUPS * 8, BATCH * TABLES * WIDTH * 4
    assert (input_bytes(forward), output_bytes(forward)) == (rows * WIDTH * 4 + indices, pooled)
    row = WIDTH * 4 + 4  # and its state
    assert (input_bytes(update), output_bytes(update)) == (rows * row + indices + pooled, rows * row)
    assert flops(forward) == rows * WIDTH


def test_mlperfs_model_has_two_million_parameters_beside_its_tables() -> None:
    model = triosim.describe("dlrm", batch=8, gpu="A100")
    parameters = {t.storage: t for op in model.operators for t in op.inputs if t.category == "parameter"}
    assert sum(t.numel for t in parameters.values() if len(t.shape) < 3) == 2_368_897
    assert [t.numel for t in parameters.values() if len(t.shape) == 3] == [26 * 7_221_984 * 128]


def test_the_widths_of_mlps_are_written_as_dlrms_own_script_takes_them() -> None:
    """57 million parameters of MLPs: DLRM of ASTRA-sim 2.0's Table III."""
    model = find("dlrm(bottom=2048-1024-128, top=4096-4096-4096-4096-1, tables=64, rows=1000000)")
    assert isinstance(model, DLRM)
    assert (model.bottom, model.top) == ((2048, 1024, 128), (4096, 4096, 4096, 4096, 1))
    read = 128 + 65 * 64 // 2
    widths = (13, *model.bottom), (read, *model.top)
    mlps = sum((into + 1) * out for each in widths for into, out in pairwise(each))
    assert mlps == pytest.approx(57e6, rel=0.1)
    trace = triosim.describe(model, batch=4, gpu="A100")
    parameters = {t.storage: t for op in trace.operators for t in op.inputs if t.category == "parameter"}
    assert sum(t.numel for t in parameters.values() if len(t.shape) < 3) == mlps


def test_a_click_has_no_tokens() -> None:
    assert triosim.simulate(step(), "single").data.metrics.tokens_per_sample is None
