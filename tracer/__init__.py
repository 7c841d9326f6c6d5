"""How a trace is captured from PyTorch: of a block of code (``capture``), a function, or a script."""

from triosim.tracer.profiler.capture import capture, capture_script, capture_step

__all__ = ["capture", "capture_script", "capture_step"]
