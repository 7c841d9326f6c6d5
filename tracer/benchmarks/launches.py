"""Measures what launching an operator costs the host: Python, dispatch, autograd and the driver.

Training steps of a network so small that its device waits for its host are timed by the host's clock, and divided by the
operators that a step launches, views left out. On a CPU the tiny kernels themselves are in the time.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from triosim.errors import OptionError, OutputError
from triosim.output_files import check_writable, writing_text
from triosim.tracer.benchmarks.software import versions
from triosim.tracer.pytorch_version import require_torch

_BLOCKS, _WIDTH, _ROWS = 8, 16, 4
_WARM_UP, _STEPS = 10, 50


@dataclass(frozen=True, slots=True)
class LaunchCost:
    """The host's seconds for each of a step's ``operators``, and where they were measured."""

    seconds: float
    operators: int
    device: str
    software: str


def measure(device: str | None = None) -> LaunchCost:
    """Measure it on a device, the GPU where there is one. Raises ``OptionError`` without PyTorch or the device."""
    require_torch("measuring")
    import torch

    kind = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if kind not in ("cpu", "cuda"):
        raise OptionError(f"'{kind}' is not a device", where="--device", fix="use cpu or cuda")
    if kind == "cuda" and not torch.cuda.is_available():
        raise OptionError("PyTorch finds no GPU", where="--device", fix="use --device cpu")
    step = _step(torch, kind)
    for _ in range(_WARM_UP):
        step()
    count = _launched(torch, step)
    synchronize = torch.cuda.synchronize if kind == "cuda" else (lambda: None)
    times = []
    for _ in range(_STEPS):
        synchronize()
        started = time.perf_counter()
        step()
        times.append(time.perf_counter() - started)
    name = torch.cuda.get_device_name() if kind == "cuda" else "CPU"
    return LaunchCost(statistics.median(times) / count, count, name, versions(torch, kind))


def check_name(path: str) -> None:
    """Raise ``OutputError`` for a file that nobody would take for YAML, or that cannot be written."""
    if not path.endswith((".yaml", ".yml")):
        raise OutputError("does not name a configuration", where=path, fix="end it in .yaml")
    check_writable(path)


def write(found: LaunchCost, path: str) -> None:
    """Write a configuration file (``--config``) with the cost."""
    with writing_text(path) as file:
        file.write(f"# {found.device}, {found.software}: median of {_STEPS} steps of {found.operators} operators\n")
        file.write(f"host_overhead: {1e6 * found.seconds:.3g} us\n")


def _step(torch: Any, device: str) -> Callable[[], None]:
    """Return a training step: linear layers, norms and activations, a loss, and an optimizer of a kernel for each list."""
    nn = torch.nn
    blocks = [(nn.Linear(_WIDTH, _WIDTH), nn.LayerNorm(_WIDTH), nn.GELU()) for _ in range(_BLOCKS)]
    network = nn.Sequential(*(layer for block in blocks for layer in block)).to(device)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-6, foreach=True)
    data = torch.rand(_ROWS, _WIDTH, device=device)

    def step() -> None:
        optimizer.zero_grad()
        network(data).square().mean().backward()
        optimizer.step()

    return step


def _launched(torch: Any, step: Callable[[], None]) -> int:
    """Return how many operators of a step launch something: views do not."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counter(TorchDispatchMode):  # type: ignore[misc]
        count = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.count += not func.is_view
            return func(*args, **(kwargs or {}))

    with Counter() as counter:
        step()
    return counter.count
