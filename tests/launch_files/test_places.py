"""What is found wrong after a launch file is read, such as sizes that do not make the GPUs, names its line and key too."""

from __future__ import annotations

from pathlib import Path

import pytest

from triosim import cli
from triosim.config import RunConfig
from triosim.errors import OptionError
from triosim.launch_files.job import ModelSizes
from triosim.launch_files.places import Places
from triosim.launch_files.reading import read_launch_file

MODEL = ModelSizes.of("llama3-8b", RunConfig.of())
TOML = "[training]\nlocal_batch_size = 2\nglobal_batch_size = 32\n[parallelism]\ntensor_parallel_degree = 1\n"
ARGUMENTS = "--bf16\n--micro-batch-size 1\n--global-batch-size 32\n--tensor-model-parallel-size 2\n"
DEEPSPEED = '{\n "train_batch_size": 32,\n "tensor_parallel": {"autotp_size": 1}\n}\n'
ACCELERATE = "distributed_type: FSDP\nnum_processes: 16\nparallelism_config:\n  parallelism_config_tp_size: 1\n"


@pytest.mark.parametrize(
    ("name", "text", "old", "new", "said"),
    [
        ("a.toml", TOML, "degree = 1", "degree = 7", "a.toml:5: parallelism.tensor_parallel_degree: tp=7 does not divide 16"),
        ("a.toml", TOML, "size = 2", "size = 3", "a.toml:2: training.local_batch_size: a batch of 2 does not consist of whole"),
        ("a.toml", TOML, "32", "7", "a.toml:3: training.global_batch_size: a global batch of 7 does not divide among 16"),
        ("a.txt", ARGUMENTS, "size 2", "size 3", "a.txt:4: --tensor-model-parallel-size: tp=3 does not divide 16 GPUs"),
        ("a.txt", ARGUMENTS, "32", "7", "a.txt:3: --global-batch-size: a global batch of 7 does not divide among 8"),
        ("a.json", DEEPSPEED, "autotp_size\": 1", "autotp_size\": 3", "a.json:3: tensor_parallel.autotp_size: tp=3 does not"),
        ("a.yaml", ACCELERATE, "tp_size: 1", "tp_size: 5", "a.yaml:4: parallelism_config.parallelism_config_tp_size: tp=5"),
    ],
)  # fmt: skip
def test_a_value_that_the_step_refuses(
    name: str, text: str, old: str, new: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text(text.replace(old, new))
    gpus = [] if name.endswith("yaml") else ["--gpus", "16"]
    command = ["llama3-8b(layers=1)", "--like", str(tmp_path / name), "--gpu", "H100", "--seq", "128", *gpus]
    for verb in ("simulate", "memory", "advise"):
        assert cli.run([verb, *command, "-q"]) == 2
        error = capsys.readouterr().err.splitlines()[-1]
        assert error.startswith(f"triosim: error: {tmp_path}/{said}")


def test_a_value_of_the_command_line_is_no_fault_of_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.toml").write_text(TOML)
    command = ["simulate", "llama3-8b(layers=1)", "--like", str(tmp_path / "a.toml"), "-q", "--gpu", "H100"]
    assert cli.run([*command, "-p", "fsdp=3,tp=2", "--gpus", "16"]) == 2
    assert capsys.readouterr().err.startswith("triosim: error: parallel: fsdp=3 x tp=2 = 6 GPUs")


def test_a_setting_has_the_places_of_the_keys_that_change_it(tmp_path: Path) -> None:
    text = "[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_schedule = 'GPipe'\n"
    (tmp_path / "a.toml").write_text(text)
    places = read_launch_file(str(tmp_path / "a.toml"), MODEL).places.of
    assert [place.partition("a.toml:")[2] for place in places["schedule"]] == [
        "2: parallelism.pipeline_parallel_degree",
        "3: parallelism.pipeline_parallel_schedule",
    ]
    assert [place.partition("a.toml:")[2] for place in places["pp"]] == ["2: parallelism.pipeline_parallel_degree"]


def test_an_error_is_about_the_option_that_it_names() -> None:
    places = Places({"tp": ("a:1",), "pp": ("a:2",), "schedule": ("a:3",), "options.overlap": ("a:4",)})
    said = {"parallel": "a:2", "--option overlap": "a:4", "schedule interleaved": "a:3", "--tp-style": "--tp-style"}
    for where, place in said.items():
        assert places.explained(OptionError("pp=3 is wrong", where=where)).where == place
    assert places.explained(OptionError("wrong", where="parallel")).where == "a:1 and a:2"
    assert places.without(["parallel"]).explained(OptionError("wrong", where="tp")).where == "tp"
