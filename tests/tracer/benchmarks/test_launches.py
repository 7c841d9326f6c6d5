"""What a launch costs the host is measured here and now, into a configuration that a run takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from triosim.cli import run
from triosim.config.file import read_config
from triosim.errors import OptionError
from triosim.tracer.benchmarks import launches
from triosim.units import parse_time


def test_a_measured_launch_is_a_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    path = tmp_path / "host.yaml"
    assert run(["calibrate", "launches", "-o", str(path), "--device", "cpu"]) == 0
    assert "use it: --config" in capsys.readouterr().err
    (overhead,) = read_config(str(path)).options.values()
    assert 1e-7 < parse_time(overhead) < 1e-3
    assert path.read_text().startswith("# CPU, torch")


def test_the_operators_of_a_step_are_those_that_launch_something() -> None:
    """A linear layer's transposed weight is a view."""
    torch = pytest.importorskip("torch")
    weight, data = torch.ones(4, 4), torch.ones(2, 4)
    assert launches._launched(torch, lambda: torch.mm(data, weight.t())) == 1


@pytest.mark.parametrize(
    ("options", "said"), [(["-o", "host.txt"], "end it in .yaml"), (["-o", "host.yaml", "--device", "tpu"], "'tpu'")]
)
def test_what_cannot_be_is_refused(
    options: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    assert run(["calibrate", "launches", *options]) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_without_pytorch_one_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(OptionError, match="pip install"):
        launches.measure()
