"""The configuration of a run is one frozen object; what parts declare is read through it, and nobody else names it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import triosim
from triosim import plugins
from triosim.config import RunConfig, flags, readers, unread
from triosim.config.commands import simulate_command
from triosim.config.option import Option
from triosim.errors import OptionError, PluginError
from triosim.extrapolators import Extrapolator
from triosim.extrapolators.data.fsdp import FullyShardedDataParallel
from triosim.extrapolators.pipeline.pp import PipelineParallel


def test_what_parts_declare_is_an_attribute_with_its_default() -> None:
    config = RunConfig.of(tp_style="megatron")
    assert (config.tp_style, config.schedule, config.bucket_size) == ("megatron", "1f1b", 25 * 2**20)
    assert config.is_given("tp_style")
    assert not config.is_given("schedule")
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.gpus = 4  # type: ignore[misc]


def test_an_unknown_option_is_answered_with_the_nearest() -> None:
    with pytest.raises(OptionError, match="there is no option 'bach_size'; did you mean 'batch_size'"):
        triosim.simulate("trace.json", bach_size=4)


def test_a_batch_is_given_once() -> None:
    with pytest.raises(OptionError, match="both the batch size of a replica and the global batch size"):
        RunConfig.of(batch_size=4, global_batch_size=8)


def test_a_part_sees_its_options_by_name_checked() -> None:
    config = RunConfig.of(options={"prefetch": "2", "load": "zipf"}).of_part(FullyShardedDataParallel)
    assert (config.prefetch, config.unit) == (2, "block")
    with pytest.raises(AttributeError, match="no part declares an option 'load'"):
        _ = config.load  # which is of ep
    with pytest.raises(OptionError, match="--option prefetch: 'x' is not a whole number"):
        RunConfig.of(options={"prefetch": "x"}).of_part(FullyShardedDataParallel)
    with pytest.raises(OptionError, match="--option stages: 'x' is not known; known: auto, balanced, equal, whole"):
        RunConfig.of(options={"stages": "x"}).of_part(PipelineParallel)


def test_a_plug_in_shares_a_flag_by_declaring_it_and_has_what_it_declares_by_name() -> None:
    class Mine(Extrapolator):
        options = (flags()["bucket_size"], Option("period", "time", "1 ms"))

    config = RunConfig.of(bucket_size="1 MB", options={"period": "2 ms"})
    mine = Mine(2, config)
    assert (mine.config.bucket_size, mine.config.period) == (1e6, 2e-3)
    assert list(unread(config, Mine.options)) == []
    assert list(unread(config, ())) == ["--bucket-size has no effect without ddp, zero1 or zero2"]
    assert list(unread(config, None)) == []  # a plug-in that declares nothing may read anything


def test_a_plug_in_cannot_redefine_an_option_of_every_run() -> None:
    class Mine(Extrapolator):
        options = (Option("layers", "whole", 3),)

    with pytest.raises(PluginError, match="declares the option 'layers', which every run has; choose another name"):
        Mine(2, RunConfig())


def test_an_option_has_a_flag_where_parallelisms_declare_it_as_one() -> None:
    parts = [plugins.load("extrapolators", name) for name in plugins.BUILT_IN["extrapolators"]]
    read = {option.name: option for part in parts for option in part.options} | {
        option.name: option
        for name in plugins.BUILT_IN["schedules"]
        for option in plugins.load("schedules", name).options
    }
    assert {name: read[name] for name in flags()} == flags()


def test_readers_follow_from_the_declarations() -> None:
    assert readers("bucket_size") == ("ddp", "zero1", "zero2")
    assert {"single", "cp", "hop"}.isdisjoint(readers("gradient_dtype"))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"training": False, "recompute": "full"}, ["--recompute has no effect in inference"]),
        ({"seq": 128}, ["--seq has no effect without a described model"]),
        ({"sequence_parallel": False}, []),  # the default
    ],
)
def test_what_has_no_effect_is_noted(given: dict[str, Any], said: list[str]) -> None:
    assert list(unread(RunConfig.of(**given), ())) == said


@pytest.mark.parametrize(("size", "said"), [("50 MiB", "'50 MiB'"), ("26 MB", "26000000")])
def test_sizes_in_a_command_are_whole(size: str, said: str) -> None:
    config = RunConfig.of(parallel="ddp=2", bucket_size=size)
    assert simulate_command("t.json", config) == f"triosim simulate t.json --parallel ddp=2 --bucket-size {said}"
