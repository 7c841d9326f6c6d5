"""Command lines of launchers say which script runs, and in how many processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from triosim import gpus
from triosim.cli import run
from triosim.config import RunConfig
from triosim.errors import OptionError
from triosim.live import launchers
from triosim.live.launchers import Launch, launch_of
from triosim.live.live_system import machine_ranks
from triosim.tracer.script_runner import Script

TRAIN = Script("train.py")


@pytest.mark.parametrize(
    ("line", "launch"),
    [
        ("train.py --steps 3", Launch(Script("train.py", ("--steps", "3")))),
        ("-m pack.train --steps 3", Launch(Script("pack.train", ("--steps", "3"), module=True))),
        ("python -u -W ignore train.py -m", Launch(Script("train.py", ("-m",)))),
        ("/usr/bin/python3 -m pack.train", Launch(Script("pack.train", module=True))),
        ("torchrun --nproc-per-node 8 --nnodes=8 train.py -x", Launch.on(Script("train.py", ("-x",)), 8, 8)),
        ("torchrun --standalone --nproc_per_node=2 -m pack.train", Launch.on(Script("pack.train", (), True), 1, 2)),
        ("torchrun --nnodes 1:4 --nproc-per-node gpu train.py", Launch(TRAIN, nodes=4)),
        ("torchrun train.py", Launch(TRAIN, world=1, local=1)),
        ("python -m torch.distributed.run --nproc-per-node 4 train.py", Launch(TRAIN, world=4, local=4)),
        ("python -m torch.distributed.launch --nproc-per-node 4 --use-env train.py", Launch(TRAIN, world=4, local=4)),
        (
            "accelerate launch --multi_gpu --num_processes 16 --num_machines 2 train.py",
            Launch(TRAIN, world=16, local=8),
        ),
        ("accelerate launch train.py", Launch(TRAIN, nodes=1)),
        (
            "deepspeed --num_nodes 2 --num_gpus 4 train.py --deepspeed",
            Launch(Script("train.py", ("--deepspeed",), local_option="--local_rank"), 8, 4),
        ),
        ("deepspeed --no_local_rank train.py", Launch(TRAIN, nodes=1)),
    ],
)
def test_a_launcher_starts_a_script_in_so_many_processes(
    line: str, launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launchers, "find_spec", lambda _: None)  # as where accelerate is not installed
    found = launch_of(line.split())
    assert (found.script, found.world, found.local) == (launch.script, launch.world, launch.local)
    assert found.world or found.nodes == launch.nodes


def test_the_older_launcher_of_pytorch_tells_a_script_its_local_rank() -> None:
    script = launch_of(
        ["python", "-m", "torch.distributed.launch", "--nproc-per-node", "4", "train.py", "--steps", "3"]
    ).script
    assert script.arguments_of(2) == ("--local-rank=2", "--steps", "3")


def test_accelerate_says_what_it_tells_its_processes(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    settings = tmp_path / "own.yaml"
    settings.write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nnum_machines: 2\nnum_processes: 8\nmixed_precision: bf16\n"
        "machine_rank: 0\nfsdp_config:\n  fsdp_version: 2\n  fsdp_reshard_after_forward: true\n",
        encoding="utf-8",
    )
    found = launch_of(["accelerate", "launch", "--config_file", str(settings), "train.py", "-x"])
    assert (found.script.path, found.script.arguments, found.world, found.local) == ("train.py", ("-x",), 8, 4)
    told = found.script.environment
    assert (told["ACCELERATE_MIXED_PRECISION"], told["ACCELERATE_USE_FSDP"], told["FSDP_VERSION"]) == (
        "bf16",
        "true",
        "2",
    )
    with pytest.raises(OptionError, match=r"accelerate launch: .*invalid choice: 'half'"):
        launch_of(["accelerate", "launch", "--mixed_precision", "half", "train.py"])


@pytest.mark.parametrize(
    "line", ["", "python", "python -c pass", "torchrun --nproc-per-node 2", "torchrun --no-python x"]
)
def test_a_command_line_without_a_script_is_refused(line: str) -> None:
    with pytest.raises(OptionError):
        launch_of(line.split())


def test_a_number_that_is_none_is_refused_by_the_launchers_option() -> None:
    with pytest.raises(OptionError, match="torchrun --nproc-per-node: 'many' is not a number"):
        launch_of(["torchrun", "--nproc-per-node", "many", "train.py"])


@pytest.mark.parametrize(
    ("gpu", "topology", "local"),
    [
        ("H100", None, 8),
        ("H100", "dgx-h100(nodes=4, gpus_per_node=4)", 4),
        ("GB200", None, 4),
        ("H100", "ring(16, bandwidth=1 GB/s)", 8),
    ],
)
def test_a_machine_has_as_many_ranks_as_gpus(gpu: str, topology: str | None, local: int) -> None:
    """Those of a rack have four."""
    config = RunConfig.of(topology=topology)
    assert machine_ranks(gpus.find(gpu), 16, config) == local
    assert machine_ranks(gpus.find(gpu), 2, config) == 2


def test_a_script_has_no_options_of_graphs(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "--topology" in shown
    assert "Chakra" not in shown
