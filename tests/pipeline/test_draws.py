"""Several draws of what is left to chance: each is the run with its own seed, and what their spread comes to."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import traces

from triosim import cli, describe, save_trace, simulate
from triosim.comparison.what_if import what_if
from triosim.errors import OptionError
from triosim.models import Llama
from triosim.pipeline.draws import draws_of
from triosim.reports.terminal.result_tables import spread
from triosim.results.result import Result

RING = "ring(4, bandwidth=1 GB/s)"
SLOW = {"stragglers": {"distribution": "uniform", "spread": 0.5, "seed": 3}}
MIXTURE = Llama(
    **{"layers": 1, "hidden": 16, "heads": 4, "kv_heads": 4, "feed_forward": 32, "vocab": 64, "experts": 4},
    sequence=8,
    name="mixture",
)


def test_the_spread_of_five_steps() -> None:
    """1 to 5 s: a twentieth of the way through four gaps is a fifth of the first; squares about 3 s add up to 10, of four."""
    found = draws_of([4.0, 1.0, 5.0, 3.0, 2.0])
    assert found.step_times_s == (4.0, 1.0, 5.0, 3.0, 2.0)
    assert (found.mean_s, found.p50_s, found.min_s, found.max_s) == (3.0, 3.0, 1.0, 5.0)
    assert (found.p5_s, found.p95_s) == (pytest.approx(1.2), pytest.approx(4.8))
    assert found.deviation_s == pytest.approx(2.5**0.5)


def test_the_spread_is_shown_with_digits_that_tell_draws_apart() -> None:
    shown = spread(draws_of([10.684e-3, 10.701e-3]))
    assert shown.startswith("mean 10.693 ± 0.012 ms; p5 10.685, p50 10.693, p95 10.7; 10.684 to 10.701 ms")


def test_quantiles_are_numpys() -> None:
    times = list(np.random.default_rng(1).lognormal(size=37))
    found = draws_of(times)
    assert [found.p5_s, found.p50_s, found.p95_s] == pytest.approx(list(np.percentile(times, [5, 50, 95])))


def test_a_draw_is_the_run_with_the_next_seed() -> None:
    result = simulate(traces.mlp(), "dp=4", topology=RING, conditions=SLOW, draws=3)
    seeds = [{"stragglers": {**SLOW["stragglers"], "seed": seed}} for seed in (3, 4, 5)]
    alone = [simulate(traces.mlp(), "dp=4", topology=RING, conditions=one) for one in seeds]
    assert result.data.draws is not None
    assert result.data.draws.step_times_s == tuple(one.step_time_s for one in alone)
    assert len(set(result.data.draws.step_times_s)) == 3
    assert result.data.ranks == alone[0].data.ranks  # all else is of the first


def test_slow_links_and_what_a_topology_says_are_drawn_again_too() -> None:
    system = {
        "nodes": ["gpu0", "gpu1"],
        "links": [{"from": "gpu0", "to": "gpu1", "bandwidth": "1 MB/s"}],
        "slow_links": {"distribution": "uniform", "spread": 4, "seed": 7},
    }
    drawn = simulate(traces.mlp(), "dp=2", topology=system, draws=2).data.draws
    other = simulate(traces.mlp(), "dp=2", topology={**system, "slow_links": {**system["slow_links"], "seed": 8}})
    assert drawn is not None
    assert drawn.step_times_s[1] == other.step_time_s != drawn.step_times_s[0]


def test_tokens_are_drawn_from_the_next_seed_on_another_gpu_too() -> None:
    trace = describe(MIXTURE, batch=2)
    given = {"topology": "dgx-h100", "gpu": "H100"}
    drawn = simulate(
        trace, "dp=4,ep=4", options={"load": "zipf", "seed": "5"}, draws=3, timeline=True, **given
    ).data.draws
    alone = [
        simulate(trace, "dp=4,ep=4", options={"load": "zipf", "seed": str(seed)}, **given).step_time_s
        for seed in (5, 6, 7)
    ]
    assert drawn is not None
    assert list(drawn.step_times_s) == pytest.approx(alone, rel=1e-12)


@pytest.mark.parametrize(("parallel", "options"), [("dp=4", {}), ("dp=4,ep=4", {"load": "balanced"})])
def test_nothing_left_to_chance_is_refused(parallel: str, options: dict[str, str]) -> None:
    with pytest.raises(OptionError, match="nothing in this run is drawn at random; give --stragglers"):
        simulate(describe(MIXTURE, batch=2), parallel, options=options, topology=RING, draws=2)
    with pytest.raises(OptionError, match="--draws: 0 is less than 1; give 1 or more"):
        simulate(traces.mlp(), "dp=4", topology=RING, conditions=SLOW, draws=0)


def test_what_would_be_saved_is_asked_of_the_first_draw() -> None:
    result = what_if(traces.mlp(), "dp=4", topology=RING, conditions=SLOW, draws=2)
    assert result.data.draws is not None
    gpus = next(row for row in result.data.what_if if row.what == "all GPUs")
    assert gpus.step_time_s + gpus.saved_s == pytest.approx(result.data.draws.step_times_s[0])


def test_all_of_it_is_written_read_shown_and_drawn(tmp_path: Path) -> None:
    trace, out, plot, table = (tmp_path / name for name in ("trace.json", "out.json", "plot.png", "all.csv"))
    save_trace(traces.mlp(), trace)
    command = f"simulate {trace} -p dp=4 --stragglers uniform,spread=0.5,seed=3 --draws 4"
    assert cli.run([*command.split(), "-t", RING, "-o", str(out), "--plot", str(plot), "--csv", str(table)]) == 0
    result = Result.load(out)
    draws = result.data.draws
    assert draws is not None
    assert draws_of(draws.step_times_s) == draws
    assert json.loads(out.read_text())["draws"]["mean_s"] == draws.mean_s
    assert "4 draws" in str(result)
    assert "4 draws" in result._repr_html_()
    assert f"draws,,p95,{draws.p95_s},s" in table.read_text()
    assert plot.stat().st_size > 0
    assert "draws" not in str(simulate(traces.mlp(), "dp=4", topology=RING))
