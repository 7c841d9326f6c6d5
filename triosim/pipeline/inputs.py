"""What a result was made from, as ``result.json`` keeps it: config, versions, files with their hashes, trace and topology."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import triosim
from triosim.networks.topology import Topology
from triosim.trace import Trace


def inputs_of(
    config: Mapping[str, Any], files: Mapping[str, str], trace: Trace, topology: Topology
) -> Mapping[str, Any]:
    """Return everything needed to run it again. ``files`` are paths by what they were read for ("trace", "topology")."""
    return {
        "versions": versions(),
        "options": dict(config),
        "files": {name: {"path": path, "sha256": sha256(Path(path))} for name, path in files.items()},
        "trace": {
            "model": trace.model,
            "gpu": trace.gpu,
            "batch_size": trace.batch_size,
            "times": trace.times,
            "operators": len(trace.operators),
        },
        "topology": {"name": topology.name, "gpus": len(topology.gpus), "links": len(topology.links)},
    }


def versions() -> dict[str, str]:
    """Return the versions of triosim, of Python and of what the figures depend on."""
    from importlib.metadata import version  # importing numpy to ask it would cost 80 ms

    return {
        "triosim": triosim.__version__,
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "simpy": version("simpy"),
    }


def sha256(path: Path) -> str | dict[str, str]:
    """Return a file's SHA-256, or that of each file of a folder by name."""
    if path.is_dir():
        return {file.name: _sha256(file) for file in sorted(path.iterdir()) if file.is_file()}
    return _sha256(path)


def _sha256(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
