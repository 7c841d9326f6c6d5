"""The installed version of PyTorch: whether there is one, and whether captures were tested with it."""

from __future__ import annotations

import warnings
from typing import Any

from triosim.errors import CaptureError, CaptureWarning, OptionError

#: The versions of PyTorch with which the tests of captures on a fake device ran, and those of captures on a real one.
TESTED = ("2.11", "2.13")
TESTED_WITH_A_DEVICE = ("2.6", "2.9", "2.11", "2.13")


def require_torch(purpose: str = "capturing") -> None:
    """Raise ``OptionError`` when PyTorch is not installed."""
    try:
        import torch  # noqa: F401
    except ImportError:
        raise OptionError(f"{purpose} needs PyTorch", fix="install it: pip install 'triosim[torch]'") from None


def check_version(*, device: bool = False) -> None:
    """Warn when captures on a fake (or, with ``device``, a real) device were not tested with this version of PyTorch."""
    import torch

    versions = TESTED_WITH_A_DEVICE if device else TESTED
    if not any(torch.__version__ == tested or torch.__version__.startswith(f"{tested}.") for tested in versions):
        what = "on a real device" if device else "without a GPU"
        warnings.warn(
            f"captures {what} were tested with PyTorch {', '.join(versions)}, and this is {torch.__version__}",
            CaptureWarning,
            stacklevel=3,
        )


def required(owner: Any, name: str) -> Any:
    """Return an attribute of a module or class of PyTorch. Raises ``CaptureError`` when this version lacks it."""
    try:
        return getattr(owner, name)
    except AttributeError:
        raise missing_api(f"{getattr(owner, '__name__', type(owner).__name__)}.{name}") from None


def missing_api(name: str) -> CaptureError:
    """Return the error for a name that this version of PyTorch does not have."""
    import torch

    return CaptureError(
        f"PyTorch {torch.__version__} has no {name}, which a capture needs",
        fix=f"use a version that captures were tested with: {', '.join(TESTED)}",
    )
