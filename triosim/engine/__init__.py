"""The engine: ranks, streams, compute units, copy engines and the rendezvous of collectives on a SimPy clock."""

from triosim.engine.engine import Engine, Progress
from triosim.engine.options import EngineOptions
from triosim.engine.recording import Recording

__all__ = ["Engine", "EngineOptions", "Progress", "Recording"]
