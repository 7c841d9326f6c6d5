"""The times of experts' operators: found once for the calls that layers and ranks have in common, as for each alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from traces import planned

from triosim import describe
from triosim.compute.compute_model import Estimates
from triosim.compute.models.auto import AutoComputeModel
from triosim.config import RunConfig
from triosim.extrapolators.core.program import Program
from triosim.extrapolators.expert.ep import ExpertParallel
from triosim.models import Llama
from triosim.trace import Operator

#: Three equal layers of eight experts, two for each of 64 tokens.
TRACE = describe(
    Llama(
        **{"layers": 3, "hidden": 64, "heads": 4, "kv_heads": 4, "feed_forward": 96, "vocab": 128},
        **{"experts": 8, "sequence": 64, "name": "three-mixtures"},
    ),
    batch=1,
    gpu="H100",
)


def programs(load: str, *, deduplicate: bool) -> list[Program]:
    plan = planned(TRACE, "dp=4")
    part = ExpertParallel(4, RunConfig.of(options={"load": load}))
    begun = replace(plan.program, deduplicate=deduplicate)
    return [part.transform(replace(begun, coordinates=(("ep", rank),)), plan.mesh) for rank in range(4)]


@pytest.mark.parametrize("load", ["zipf", "balanced"])
def test_calls_that_are_priced_together_take_what_each_takes_alone(load: str) -> None:
    for together, alone in zip(programs(load, deduplicate=True), programs(load, deduplicate=False), strict=True):
        times, expected = (
            [(one.id, one.seconds, one.predicted_by, one.relative_error) for one in program.operators]
            for program in (together, alone)
        )
        assert times == expected


def test_layers_and_ranks_with_as_many_rows_are_priced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """With balanced loads all ranks' experts of all three layers receive 128 rows: one layer is asked for."""
    asked: list[Operator] = []
    ratios = AutoComputeModel.ratios

    def counted(
        self: AutoComputeModel, before: Sequence[Operator], after: Sequence[Operator], gpu: str, target: str
    ) -> Estimates:
        asked.extend(one for one in after if "grouped" in one.name.lower())
        return ratios(self, before, after, gpu, target)

    monkeypatch.setattr(AutoComputeModel, "ratios", counted)
    layers = {one.layer for one in TRACE.operators if "grouped" in one.name.lower()}
    programs("balanced", deduplicate=True)
    once = len(asked)
    programs("balanced", deduplicate=False)
    assert len(layers) == 3
    assert len(asked) - once == 3 * once
