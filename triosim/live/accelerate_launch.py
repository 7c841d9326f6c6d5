"""What ``accelerate launch`` tells the processes that it starts: its environment, with that of its configuration file.

It is asked in a process of its own, because it imports PyTorch: ``python -m triosim.live.accelerate_launch --num_processes 8
train.py`` prints what it would start.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from triosim.errors import OptionError


@dataclass(frozen=True, slots=True)
class AccelerateLaunch:
    """The ``environment`` of each process, how many there are, None where it is one for each GPU, and on how many machines."""

    environment: Mapping[str, str] = field(default_factory=dict)
    processes: int | None = None
    machines: int | None = None


def asked(words: Sequence[str]) -> AccelerateLaunch:
    """Return what ``accelerate launch`` starts with these words. Raises ``OptionError`` where it refuses them."""
    done = subprocess.run([sys.executable, "-m", __name__, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["ends with an error"])[-1]
        raise OptionError(said, where="accelerate launch", fix="see 'accelerate launch --help'")
    return AccelerateLaunch(**json.loads(done.stdout.splitlines()[-1]))


def launch(words: Sequence[str]) -> AccelerateLaunch:
    """Return what ``accelerate launch`` starts with these words, as it works that out itself."""
    import torch
    from accelerate.commands import launch as command
    from accelerate.utils import launch as environments

    setattr(torch.cuda, "is_available", lambda: True)  # noqa: B010
    setattr(torch.cuda, "device_count", lambda: _NO_COUNT)  # noqa: B010
    args: Any = command.launch_command_parser().parse_args(list(words))
    args, *_ = command._validate_launch_command(args)
    args.main_process_port = 0  # any that is free: nothing listens to it
    args.machine_rank = args.machine_rank or 0
    before = dict(os.environ)
    if args.use_deepspeed:
        _, found = environments.prepare_deepspeed_cmd_env(args)
    elif args.multi_gpu or args.use_fsdp:
        found = environments.prepare_multi_gpu_env(args)
    else:
        _, found = environments.prepare_simple_launcher_cmd_env(args)
    told = {name: value for name, value in found.items() if before.get(name) != value}
    count = None if args.num_processes == _NO_COUNT else args.num_processes
    return AccelerateLaunch(told, count, args.num_machines)


#: The GPUs of a machine, where nobody has said how many there are.
_NO_COUNT = 4096

if __name__ == "__main__":
    print(json.dumps(asdict(launch(sys.argv[1:]))))
