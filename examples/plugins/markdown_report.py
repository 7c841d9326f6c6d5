"""A report: the step and its slowest layers as a Markdown table, for a pull request say.

triosim simulate trace.json -p ddp -n 8 --write markdown_report.py:Markdown=step.md --option rows=10
"""

from __future__ import annotations

from triosim.config import Option
from triosim.output_files import PathLike, writing_text
from triosim.reports import Report
from triosim.results.result import Result
from triosim.units import format_time


class Markdown(Report):
    options = (Option("rows", "whole", 5, "How many layers are listed."),)

    def __init__(self, rows: int = 5) -> None:
        self.rows = rows

    def write(self, result: Result, path: PathLike) -> None:
        layers = sorted(result.data.layers, key=lambda layer: -layer.total_s)[: self.rows]
        lines = [
            f"**{result.title}**: {format_time(result.step_time_s)} a step",
            "",
            "| layer | time |",
            "| --- | ---: |",
        ]
        lines += [f"| {layer.layer} | {format_time(layer.total_s)} |" for layer in layers]
        with writing_text(path) as file:  # which leaves no half-written file behind
            file.write("\n".join(lines) + "\n")
