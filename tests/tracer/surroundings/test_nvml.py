"""``pynvml`` answers for the GPUs that are not there, and says of what is not simulated that it is not supported."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from triosim.tracer.fake_device import FakeDevice  # noqa: E402

#: What of the real module the patches touch.
PYNVML = """
class NVMLError(Exception):
    pass
def _nvmlGetFunctionPointer(name):
    raise NVMLError(12)
def nvmlInit():
    _nvmlGetFunctionPointer("nvmlInit")
nvmlDeviceGetCount = nvmlDeviceGetHandleByIndex = nvmlDeviceGetName = nvmlDeviceGetMemoryInfo = nvmlInit
nvmlDeviceGetUtilizationRates = nvmlInit
def nvmlDeviceGetPowerUsage(handle):
    return _nvmlGetFunctionPointer("nvmlDeviceGetPowerUsage")
"""


def test_nvml_sees_the_fake_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pynvml.py").write_text(PYNVML, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    with FakeDevice("H100-SXM", limited=True):
        import pynvml

        pynvml.nvmlInit()
        held = torch.empty(2**30, dtype=torch.uint8, device="cuda")
        (handle,) = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        assert pynvml.nvmlDeviceGetName(handle) == "NVIDIA H100 80GB HBM3"
        assert (memory.free, memory.total) == torch.cuda.mem_get_info()
        assert memory.used > held.nbytes
        assert pynvml.nvmlDeviceGetUtilizationRates(handle).gpu == 100
        with pytest.raises(pynvml.NVMLError) as raised:
            pynvml.nvmlDeviceGetPowerUsage(handle)
        assert raised.value.args == (3,)
    monkeypatch.delitem(sys.modules, "pynvml")
