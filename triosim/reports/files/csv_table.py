"""The report ``csv``: every figure of a result as a row ``table,item,quantity,value,unit``, for a spreadsheet."""

from __future__ import annotations

import csv

from triosim.output_files import PathLike, writing_text
from triosim.results.figure_rows import COLUMNS, figure_rows
from triosim.results.report import Report
from triosim.results.result import Result


class Csv(Report):
    """All figures of a result in one CSV file (RFC 4180, with a header; compressed where the name ends in .gz)."""

    def write(self, result: Result, path: PathLike) -> None:
        """Write every figure as a row."""
        with writing_text(path) as file:
            writer = csv.writer(file, lineterminator="\r\n")
            writer.writerow(COLUMNS)
            writer.writerows(figure_rows(result.data))
