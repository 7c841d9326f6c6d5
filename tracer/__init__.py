"""How a trace is captured from PyTorch: ``capture`` profiles one step and returns its trace."""

from triosim.tracer.capture import capture

__all__ = ["capture"]
