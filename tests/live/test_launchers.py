"""Command lines of launchers say which script runs, and in how many processes."""

from __future__ import annotations

import pytest

from triosim import gpus
from triosim.cli import run
from triosim.config import RunConfig
from triosim.errors import OptionError
from triosim.live.launchers import Launch, launch_of
from triosim.live.live_system import machine_ranks


@pytest.mark.parametrize(
    ("line", "launch"),
    [
        ("train.py --steps 3", Launch("train.py", ("--steps", "3"))),
        ("-m pack.train --steps 3", Launch("pack.train", ("--steps", "3"), module=True)),
        ("python -u -W ignore train.py -m", Launch("train.py", ("-m",))),
        ("/usr/bin/python3 -m pack.train", Launch("pack.train", module=True)),
        ("torchrun --nproc-per-node 8 --nnodes=8 train.py -x", Launch("train.py", ("-x",), world=64, local=8)),
        ("torchrun --standalone --nproc_per_node=2 -m pack.train", Launch("pack.train", (), True, 2, 2)),
        ("torchrun --nnodes 1:4 --nproc-per-node gpu train.py", Launch("train.py", world=32, local=8)),
        ("torchrun train.py", Launch("train.py", world=1, local=1)),
        ("python -m torch.distributed.run --nproc-per-node 4 train.py", Launch("train.py", world=4, local=4)),
        ("accelerate launch --multi_gpu --num_processes 16 --num_machines 2 t.py", Launch("t.py", world=16, local=8)),
        ("accelerate launch train.py", Launch("train.py")),
        (
            "deepspeed --num_nodes 2 --num_gpus 4 train.py --deepspeed",
            Launch("train.py", ("--deepspeed",), False, 8, 4),
        ),
    ],
)
def test_a_launcher_starts_a_script_in_so_many_processes(line: str, launch: Launch) -> None:
    assert launch_of(line.split()) == launch


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
