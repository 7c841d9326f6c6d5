"""The space of a search: axes, points, rules, and the run of each point."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from triosim.config import RunConfig
from triosim.configuration_search.point import Point
from triosim.configuration_search.spaces.cluster import Cluster, cluster_of
from triosim.configuration_search.spaces.declaration import (
    Declaration,
    of_mapping,
    of_texts,
    of_topology,
    read_space,
    space_of,
    split_values,
)
from triosim.configuration_search.spaces.rules import RULES, validity_of
from triosim.configuration_search.spaces.space import Space
from triosim.configuration_search.spaces.subject import subject_of
from triosim.errors import OptionError

TRACES = Path(__file__).resolve().parents[2] / "examples" / "traces"


def space(*varied: str, model: str = "gpt-18.4b", without: tuple[str, ...] = (), **base: object) -> Space:
    given = {"topology": "dgx-h100(gpus=64)", "global_batch_size": 512, **base}
    config = RunConfig.of(**{name: value for name, value in given.items() if value is not None})
    return space_of(subject_of(model, config), config, of_texts(varied, without))


def test_a_point_is_known_by_the_values_of_its_axes_in_any_order() -> None:
    point = Point.of({"tp": 2, "recompute": "full", "sequence_parallel": True})
    assert point == Point.of({"sequence_parallel": True, "recompute": "full", "tp": 2})
    assert Point.read(point.key) == point
    assert str(point) == "recompute=full sequence_parallel=yes tp=2"


def test_mayas_space_has_1920_points_of_which_rules_leave_768() -> None:
    """A fifth has six micro-batches per stage, which do not divide 512. 40 layers on 16 or 32 stages are 2.5 or 1.25."""
    found = validity_of(
        space(
            *("tp=1,2,4,8", "pp=1,2,4,8", "micro_batches=1*pp,2*pp,4*pp,6*pp,8*pp", "virtual_stages=1,2,4"),
            *("recompute=none,full", "sequence-parallel=no,yes", "data_parallel=ddp,zero1"),
            seq=2048,
        )
    )
    assert found.points == 4 * 4 * 5 * 3 * 2 * 2 * 2 == 1920
    assert found.invalid["batch"] == 1920 // 5
    # pp=1 with 2 or 4 virtual stages, of the four fifths that are left: 4 tp x 4 multiples x 2 x 8
    assert found.invalid["virtual"] == 4 * 4 * 2 * 8
    # 16 stages are pp=4 with v=4 or pp=8 with v=2, 32 are pp=8 with v=4
    assert found.invalid["layers"] == 3 * 4 * 4 * 8
    # sequence parallelism without tp: of 6 pairs of pp and v, 4 multiples, 2 x 2
    assert found.invalid["same"] == (12 - 2 - 3 + 1) * 4 * 2 * 2
    assert len(found.valid) == 1920 - sum(found.invalid.values()) == 768


def test_data_parallelism_takes_the_gpus_that_the_others_leave() -> None:
    run = space("tp=2", "pp=4", "data_parallel=zero1", "micro_batches=2*pp")
    (point,) = run.points()
    config = run.config(point)
    assert config.parallel == "zero1=8,tp=2,pp=4"
    assert (config.gpus, config.micro_batches, config.schedule) == (64, 8, "1f1b")


def test_options_of_parallelisms_that_a_point_lacks_are_left_out_of_its_run() -> None:
    run = space("tp=1,2", "pp=1,2", "sequence_parallel=no", options={"load": "zipf", "prefetch": "2"})
    alone = run.config(Point.of({"tp": 1, "pp": 1, "sequence_parallel": False}))
    assert alone.parts == {}
    assert alone.options == {}
    both = run.config(Point.of({"tp": 2, "pp": 2, "sequence_parallel": False}))
    assert both.parts == {"sequence_parallel": False, "schedule": "1f1b"}


def test_several_virtual_stages_are_interleaved() -> None:
    run = space("pp=4", "virtual_stages=1,5")
    parts = [run.config(point).parts for point in run.points()]
    assert parts == [{"schedule": "1f1b"}, {"schedule": "interleaved", "virtual_stages": 5}]


def priced(varied: str, budget: float) -> Space:
    """Return a space of eight GPUs behind a switch, of which a link costs 1 for each GB/s."""
    switch = {"topology": "switch", "gpus": 8, "bandwidth": "10 GB/s", "price": 1}
    declared = of_topology([varied], switch)
    config = RunConfig.of(topology=switch, global_batch_size=16)
    made = space_of(subject_of("gpt2", config), config, declared.merged(of_mapping({"dp": [8]})))
    return replace(made, network_budget=budget)


def test_every_rule_excludes_what_its_text_says() -> None:
    """Each of these spaces has one point that keeps all rules, and one that breaks the rule of that name."""
    one_of_each = {
        "gpus": space("tp=1,2", "dp=64"),
        "batch": space("micro_batch_size=8,16"),
        "virtual": space("pp=1,4", "virtual_stages=5"),
        "stage": space("schedule=1f1b,interleaved", "pp=4", "virtual_stages=1"),
        "groups": space("micro_batches=4,2", "pp=4", "virtual_stages=5"),
        "price": priced("bandwidth=10 GB/s,20 GB/s", budget=8 * 15),
        "heads": space("tp=2,5", model="gpt-18.4b(vocab=51200)", topology="dgx-h100(gpus=80)", global_batch_size=640),
        "vocabulary": space("tp=1,2", model="gpt2"),
        "layers": space("pp=8,16"),
        "sequence": space("cp=1,8", seq=2040),
        "experts": space("ep=8,16", model="mixtral-8x7b"),
        "node": space("tp=8,16"),
        "same": space("tp=1", "sequence_parallel=no,yes"),
    }
    assert one_of_each.keys() == {rule.name for rule in RULES}
    for name, of_rule in one_of_each.items():
        assert validity_of(of_rule).invalid == {name: 1}, name


def test_a_rule_can_be_left_out_unless_no_run_can_break_it() -> None:
    assert len(validity_of(space("tp=8,16", without=("node",))).valid) == 2
    with pytest.raises(OptionError, match="'gpus' is a rule for all points: dp x tp x pp x cp is the number of GPUs"):
        space("tp=8", without=("gpus",))


def test_a_space_without_a_valid_point_says_which_rules_exclude_them() -> None:
    with pytest.raises(OptionError, match="no point of the space is valid: 2 break the rule 'heads'"):
        validity_of(space("tp=5,7", topology="dgx-h100(gpus=280)", global_batch_size=280))
    with pytest.raises(OptionError, match=r"vary over other values, or give --without-rule heads$"):
        validity_of(space("tp=5,7", topology="dgx-h100(gpus=280)", global_batch_size=280))
    with pytest.raises(OptionError, match=r"1 break the rule 'gpus' .*; vary over other values$"):
        validity_of(space("tp=3"))


def test_the_embedding_and_the_loss_may_count_as_layers() -> None:
    """Llama 3 405B has 126 layers on 16 stages, of which the first and the last have one less (Llama Team 2024)."""
    assert len(validity_of(space("pp=16", model="llama3-405b")).valid) == 1


def test_the_global_batch_of_a_trace_is_its_batch_on_every_gpu() -> None:
    trace = str(TRACES / "vgg13_a100_fake.json.gz")
    found = space("gpus=2,8", model=trace, topology=None, global_batch_size=None)
    assert found.base.global_batch_size == 8 * (found.subject.batch_size or 0) > 0


def test_a_default_space_follows_model_and_cluster() -> None:
    found = space(model="mixtral-8x7b", topology="dgx-h100(gpus=16)", global_batch_size=64)
    values = {axis.name: axis.values for axis in found.axes}
    assert values["tp"] == values["ep"] == (1, 2, 4, 8)  # a node has eight GPUs, a layer eight experts
    assert values["pp"] == (1, 2, 4, 8, 16)
    fixed = space(model="mixtral-8x7b", recompute="full", global_batch_size=64)
    assert fixed.axis("recompute") is None


def test_neighbours_differ_by_one_step_along_one_axis() -> None:
    run = space("tp=1,2,4", "recompute=none,full")
    found = dict(run.neighbours(Point.of({"tp": 4, "recompute": "none"})))
    assert found == {
        "tp": Point.of({"tp": 2, "recompute": "none"}),
        "recompute": Point.of({"tp": 4, "recompute": "full"}),
    }


def test_a_space_comes_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "space.yaml"
    path.write_text(
        "vary:\n  tp: [1, 2]\n  micro_batches: ['2*pp']\n  sequence_parallel: [no, yes]\nwithout_rules: [node]\n"
    )
    found = read_space(str(path))
    assert {name: axis.values for name, axis in found.axes.items()} == {
        "tp": (1, 2),
        "micro_batches": ("2*pp",),
        "sequence_parallel": (False, True),
    }
    assert found.without_rules == {"node"}
    assert found.merged(of_texts(["tp=4"])).axes["tp"].values == (4,)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1]", "space.yaml: declares no space"),
        ("vary:\n  tpp: [1]", "space.yaml:2: vary: tpp: there is no option 'tpp' that can vary; did you mean 'tp'?"),
        ("vary:\n  tp: [none]", "'none' is not a whole number"),
        ("vary: {tp: [1]}\nrules: []", "space.yaml:2: rules: there is no key 'rules'"),
        ("vary: {tp: []}", "has no values"),
        ("vary: {}", "space.yaml: declares no space"),
        ("vary: {tp: [1]}\nwithout_rules: [nod]", "space.yaml:2: without_rules: there is no rule 'nod' to leave out"),
    ],
)
def test_a_wrong_file_is_named_with_its_line(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "space.yaml"
    path.write_text(text)
    with pytest.raises(OptionError) as error:
        read_space(str(path))
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tp", "'tp' is not a name and values; write tp=1,2,4"),
        ("tp=", "has no values"),
        ("tp=0", "0 is less than 1"),
        ("data_parallel=pp", "'pp' divides no data"),
        ("options=1", "there is no option 'options' that can vary"),
    ],
)
def test_a_wrong_axis_is_said_in_a_line(text: str, said: str) -> None:
    with pytest.raises(OptionError, match="--vary") as error:
        of_texts([text])
    assert said in str(error.value)


def test_values_are_divided_at_commas_outside_of_parentheses() -> None:
    assert split_values("dgx-h100(gpus=16, x=1),dgx-a100") == ["dgx-h100(gpus=16, x=1)", "dgx-a100"]


def test_a_cluster_knows_its_nodes() -> None:
    config = RunConfig.of(topology="dgx-h100(gpus=64)")
    subject = subject_of("gpt2", config)
    assert cluster_of(subject, config, Point(())) == Cluster(64, 8)
    assert cluster_of(subject, config, Point.of({"topology": "gb200-nvl72"})) == Cluster(72, 72)


def test_a_batch_of_replicas_is_refused_since_their_number_varies() -> None:
    config = RunConfig.of(batch_size=8)
    with pytest.raises(OptionError, match="--batch-size: points with other numbers of replicas"):
        space_of(subject_of("gpt2", config), config, Declaration())


@pytest.mark.parametrize(
    ("varied", "shown"),
    [
        (("tp=2", "pp=4", "data_parallel=zero1", "micro_batches=2*pp"), "zero1=8,tp=2,pp=4 · 8 micro-batches"),
        (("tp=8", "pp=8", "virtual_stages=5", "micro_batch_size=1"), "tp=8,pp=8 · micro-batch 1 · interleaved x5"),
        (("tp=2", "recompute=none", "sequence_parallel=no"), "ddp=32,tp=2"),
        (("tp=2", "recompute=full", "sequence_parallel=yes"), "ddp=32,tp=2 · recompute full · sequence parallel"),
        (("gpus=1", "gpu=H100-SXM", "micro_batch_size=2"), "one GPU · micro-batch 2 · gpu H100-SXM · gpus 1"),
    ],
)
def test_a_point_in_short_leaves_out_defaults(varied: tuple[str, ...], shown: str) -> None:
    run = space(*varied)
    (point,) = run.points()
    assert run.summary(point) == shown
