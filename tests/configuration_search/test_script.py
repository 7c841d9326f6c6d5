"""Scripts as subjects of a search: which arguments a point gives them, and what is captured."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from triosim.cli import run
from triosim.config import RunConfig
from triosim.configuration_search.point import Point
from triosim.configuration_search.spaces.declaration import of_arguments, of_texts, space_of, space_of_fingerprint
from triosim.configuration_search.spaces.rules import validity_of
from triosim.configuration_search.spaces.script import Script, varied_arguments
from triosim.configuration_search.spaces.space import Space
from triosim.configuration_search.spaces.subject import subject_of_script
from triosim.errors import OptionError

SCRIPT = Script("train.py", ("--layers", "8"), ("--tp", "model.width"))
ARGUMENTS = {"--tp": ("1", "2"), "model.width": ("64",)}


def space(*varied: str) -> Space:
    declared = of_texts(varied).merged(of_arguments(ARGUMENTS))
    return space_of(subject_of_script(SCRIPT), RunConfig.of(gpu="H100-SXM", topology="dgx-h100"), declared)


def test_a_point_gives_the_script_its_arguments() -> None:
    point = Point.of({"--tp": "2", "model.width": "64", "gpus": 8})
    assert SCRIPT.arguments_at(point) == ("--layers", "8", "--tp=2", "model.width=64")


def test_the_commands_of_a_point_capture_and_simulate_it() -> None:
    point = Point.of({"--tp": "2", "model.width": "64", "gpus": 8})
    assert space("gpus=4,8").command(point) == (
        "triosim capture --fake --gpu H100-SXM --world 8 -o train.json.gz train.py --layers 8 --tp=2 model.width=64"
        " && triosim simulate train.json.gz --topology dgx-h100"
    )


def test_rules_know_how_many_gpus_there_are() -> None:
    found = validity_of(space("gpus=4,8,16"))
    assert (found.points, len(found.valid), found.invalid) == (6, 6, {})  # the topology grows with them


def test_a_study_of_a_script_can_be_shown_without_it() -> None:
    declared = space("gpus=4,8")
    assert space_of_fingerprint(declared.fingerprint).fingerprint == declared.fingerprint


@pytest.mark.parametrize("varied", ["tp=1,2", "micro_batch_size=1,2", "recompute=none,full"])
def test_only_its_arguments_change_a_script_s_step(varied: str) -> None:
    with pytest.raises(OptionError, match="is what the script makes of its arguments"):
        space(varied)


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["--tp"], "is not an argument and values"),
        (["--tp="], "is not an argument and values"),
        (["=1,2"], "is not an argument and values"),
        (["--tp=1", "--tp=2"], "given twice"),
    ],
)
def test_wrong_arguments_are_refused(texts: list[str], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        varied_arguments(texts)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--script", "none.py"], "there is no such script"),
        (["--script", "train.py 'a"], "is no command"),
        (["--script", "none.py", "gpt2"], "is given besides a script"),
        (["gpt2", "--vary-argument", "--tp=1"], "give --script"),
    ],
)
def test_a_wrong_script_ends_in_one_line(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["search", *arguments, "--gpus", "2"]) == 2
    assert said in capsys.readouterr().err


TRAIN = """
import argparse, os
import torch, torch.distributed as dist
parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int)
parser.add_argument("--samples", type=int)
options = parser.parse_args()
print("not to be seen")
assert options.width != 13
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(options.width, options.width).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    model(torch.randn(options.samples, options.width, device="cuda")).sum().backward()
    optimizer.step()
"""


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="captures need PyTorch")
def test_a_script_is_captured_at_every_point(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script, study = tmp_path / "train.py", str(tmp_path / "study.db")
    script.write_text(TRAIN)
    asked = ["--script", f"{script} --samples 8", "--vary-argument", "--width=4096,64,13", "--gpus", "2"]
    assert run(["search", *asked, "--study", study, "--format", "json", "--quiet", "--jobs", "2"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert (found["points"], found["simulated"], found["refused"]) == (3, 2, 1)
    fast, slow = found["top"]
    assert (fast["settings"], slow["settings"]) == ({"--width": "64"}, {"--width": "4096"})
    assert slow["peak_memory_bytes"] > 2 * 4096 * 4096 * 4  # the weights and their gradients
    assert run(["search", "--show", study, "--format", "json"]) == 0
    assert json.loads(capfd.readouterr().out)["top"] == found["top"]
