"""A run's configuration is written to a file and read from it, and an error names file, line and key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from triosim.config.file import merged, read_config, write_config
from triosim.errors import OptionError


def read(tmp_path: Path, text: str, name: str = "run.yaml") -> object:
    path = tmp_path / name
    path.write_text(text)
    return read_config(str(path))


@pytest.mark.parametrize("name", ["run.yaml", "run.json"])
def test_what_is_written_is_read_with_absolute_paths(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for file in ("trace.json", "cluster.yaml", "mine.py"):
        Path(file).touch()
    options = {
        "parallel": "dp=2,mine.py:Mine=4",
        "topology": "cluster.yaml",
        "network": "mine.py:Network",
        "bucket_size": "10 MiB",
        "conditions": {"slow_gpus": ["3=2"]},
        "options": {"alpha": "1 us"},
    }
    write_config(name, {"trace": "trace.json", **options})
    found = read_config(name)
    assert found.trace == f"{tmp_path}/trace.json"
    assert found.options == {
        **options,
        "parallel": f"dp=2,{tmp_path}/mine.py:Mine=4",
        "topology": f"{tmp_path}/cluster.yaml",
        "network": f"{tmp_path}/mine.py:Network",
    }


def test_a_relative_path_is_looked_for_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "trace.json").touch()
    (tmp_path / "run.yaml").write_text("trace: trace.json\ntopology: dgx-h100\n")
    found = read_config(str(tmp_path / "run.yaml"))
    assert (found.trace, found.options) == (f"{tmp_path}/trace.json", {"topology": "dgx-h100"})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "parallel: ddp\nbach_size: 4\n",
            "run.yaml:2: bach_size: there is no option 'bach_size'; did you mean 'batch_size'?",
        ),
        ("gpus: 8\n\nbatch_size: 0\n", "run.yaml:3: batch_size: 0 is less than 1; give 1 or more"),
        ("tp_style: megatrn\n", "run.yaml:1: tp_style: 'megatrn' is not known; did you mean 'megatron'?"),
        (
            "conditions:\n  slow_gpu: 3=2\n",
            "run.yaml:2: conditions: slow_gpu: there is no condition 'slow_gpu'; did you mean 'slow_gpus'?",
        ),
        ("- gpus\n", "run.yaml: is not a mapping of options to values; write lines such as 'parallel: ddp'"),
        ("gpus: 8\ngpus: 4\n", "run.yaml:2: key 'gpus' is written twice; it is already in line 1"),
        ("trace: 3\n", "run.yaml:1: trace: 3 is not a path; give a file, a folder or a model's name"),
    ],
)
def test_what_is_wrong_is_said_with_file_line_and_key(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError) as caught:
        read(tmp_path, text)
    assert str(caught.value) == f"{tmp_path}/{said}"


def test_json_names_the_key(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"run\.json: gpu_s: there is no option 'gpu_s'; did you mean 'gpus'"):
        read(tmp_path, json.dumps({"gpu_s": 3}), "run.json")
    with pytest.raises(OptionError, match=r"run\.json: line 1 column 2: is not JSON"):
        read(tmp_path, "{", "run.json")
    with pytest.raises(OptionError, match="the result has no configuration"):
        read(tmp_path, json.dumps({"schema": "triosim-result/1", "inputs": {}}), "run.json")


def test_the_command_line_comes_before_the_file() -> None:
    file = {"parallel": "ddp", "batch_size": 4, "options": {"prefetch": "2"}, "conditions": {"stragglers": "uniform"}}
    given = {"parallel": "fsdp", "global_batch_size": 32, "options": ["unit=layer"]}
    assert merged(file, given) == {
        "parallel": "fsdp",
        "global_batch_size": 32,  # instead of the other
        "options": {"prefetch": "2", "unit": "layer"},
        "conditions": {"stragglers": "uniform"},
    }
