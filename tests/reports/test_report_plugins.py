"""Reports are plug-ins: found by name, told what a run must record, and checked before it."""

from __future__ import annotations

from pathlib import Path

import hand_made_run as run
import pytest

from triosim import cli, plugins
from triosim.errors import OptionError, OutputError, PluginError
from triosim.results import report as reports

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "plugins" / "markdown_report.py"


def test_a_report_from_a_file_is_written_with_its_options(tmp_path: Path) -> None:
    run.result().write(f"{EXAMPLE}:Markdown", tmp_path / "step.md", rows=1)
    lines = (tmp_path / "step.md").read_text().splitlines()
    assert lines[0] == "**toy, ddp on 2 x NVIDIA H100, pair**: 10.0 ms a step"
    assert lines[-1] == "| a | 4.00 ms |"  # forward 1, backward 2, optimizer 1; b has as much and comes later


def test_a_report_need_not_derive_from_the_base_class(tmp_path: Path) -> None:
    class StepTime:
        def write(self, result: object, path: Path) -> None:
            path.write_text(f"{result.step_time_s}")  # type: ignore[attr-defined]

    run.result().write(StepTime, tmp_path / "time.txt")
    assert (tmp_path / "time.txt").read_text() == "0.01"
    assert reports.records(StepTime) == ()
    reports.check(StepTime, tmp_path / "time.txt")


@pytest.mark.parametrize("name", [name for name in plugins.BUILT_IN["reports"] if not name.startswith("comparison")])
def test_every_report_of_a_result_can_be_written(name: str, tmp_path: Path) -> None:
    if name in ("parquet", "arrow"):
        pytest.importorskip("pyarrow")
    path = tmp_path / (f"{name}.svg" if "plot" in name else f"report.{name}")
    run.result().write(name, path)
    assert path.stat().st_size > 100


def test_a_report_says_before_the_run_what_it_needs_and_what_it_cannot_write() -> None:
    assert reports.records(reports.find("timeline")) == ("timeline",)
    assert reports.records(reports.find("link-plot")) == ("links",)
    with pytest.raises(OutputError, match="is not a known kind of picture"):
        reports.check(reports.find("plot"), "plot.docx")


def test_a_report_of_something_else_is_refused() -> None:
    with pytest.raises(OptionError, match="'comparison-plot' is of a comparison, not of a result"):
        run.result().write("comparison-plot", "unused.png")
    with pytest.raises(PluginError, match="unknown report 'cvs'; did you mean 'csv'"):
        run.result().write("cvs", "unused.csv")


def test_a_mistake_in_a_report_is_one_line_that_names_its_place(tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text("class Mine:\n    def write(self, result, path):\n        result.nothing\n")
    with pytest.raises(PluginError, match=r"mine\.py:3 \(.*\): AttributeError"):
        run.result().write(f"{mine}:Mine", tmp_path / "out.txt")


def test_the_command_line_writes_reports_and_records_what_they_need(tmp_path: Path) -> None:
    trace = EXAMPLE.parents[1] / "traces" / "vgg13_a100_fake.json.gz"
    own, timeline, links = tmp_path / "step.md", tmp_path / "run.json", tmp_path / "links.svg"
    reports_of = [f"{EXAMPLE}:Markdown={own}", f"timeline={timeline}", f"link-plot={links}"]
    asked = [word for report in reports_of for word in ("--write", report)]
    assert cli.run(["simulate", str(trace), "-p", "tp=2", "-t", "dgx-a100", "--quiet", *asked]) == 0
    assert own.read_text().startswith("**vgg13, tp=2 on 2 x A100-SXM-80GB, dgx-a100**")
    assert '"ph":"X"' in timeline.read_text()
    assert links.stat().st_size > 1000


def test_the_options_of_a_report_are_given_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = EXAMPLE.parents[1] / "traces" / "vgg13_a100_fake.json.gz"
    command = ["simulate", str(trace), "-q", "--write", f"{EXAMPLE}:Markdown={tmp_path / 'step.md'}"]
    assert cli.run([*command, "--option", "rows=2"]) == 0
    assert (
        sum(line.startswith("| ") for line in (tmp_path / "step.md").read_text().splitlines()) == 2 + 2
    )  # two lines of the head
    assert cli.run([*command, "--option", "row=2"]) == 2
    assert "no part of this run takes 'row'" in capsys.readouterr().err


def test_a_report_that_writes_nothing_is_said(tmp_path: Path) -> None:
    class Silent:
        def write(self, result: object, path: Path) -> None:
            pass

    for path in (tmp_path / "new.txt", tmp_path / "old.txt"):
        (tmp_path / "old.txt").write_text("of an earlier run")
        with pytest.raises(PluginError, match=r"Silent: did not write '.*txt'; let its write\(result, path\) do so"):
            run.result().write(Silent, path)


def test_a_report_that_asks_for_an_unknown_record_is_named() -> None:
    class Curious:
        records = ("timelin",)

    with pytest.raises(PluginError, match="Curious: records: 'timelin' is no record; did you mean 'timeline'"):
        reports.records(Curious)


def test_a_check_of_a_file_name_is_a_class_method_since_the_report_is_made_after_the_run(tmp_path: Path) -> None:
    class Late:
        def check(self, path: Path) -> None: ...

    class Early:
        @classmethod
        def check(cls, path: Path) -> None: ...

    class Free:
        @staticmethod
        def check(path: Path) -> None: ...

    with pytest.raises(PluginError, match="Late: check is no class method; write @classmethod above it"):
        reports.check(Late, tmp_path / "out.txt")
    reports.check(Early, tmp_path / "out.txt")
    reports.check(Free, tmp_path / "out.txt")


def test_a_timeline_does_not_take_a_network_s_own_attributes_for_recorded_flows(tmp_path: Path) -> None:
    trace = EXAMPLE.parents[1] / "traces" / "vgg13_a100_fake.json.gz"
    (tmp_path / "mine.py").write_text(
        "from triosim.networks import Network\n"
        "class Mine(Network):\n"
        "    flows = rates = record = 7\n"
        "    def transfer(self, source, destination, nbytes):\n"
        "        return self.env.timeout(1e-3)\n"
    )
    command = ["simulate", str(trace), "-p", "dp=2", "-q", "--network", f"{tmp_path / 'mine.py'}:Mine", "--links"]
    assert cli.run([*command, "--timeline", str(tmp_path / "run.json")]) == 0
    assert '"ph":"X"' in (tmp_path / "run.json").read_text()
