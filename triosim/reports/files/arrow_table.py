"""The reports ``parquet`` and ``arrow``: the rows of ``csv`` as a typed table, which pandas, Polars, DuckDB and Spark read.

The table's metadata holds, under ``triosim``, the title of the result and everything needed to run it again.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from typing import Any

from triosim.errors import OutputError
from triosim.output_files import PathLike, writing_bytes
from triosim.results.figure_rows import COLUMNS, figure_rows
from triosim.results.report import Report
from triosim.results.result import Result


class Arrow(Report):
    """All figures of a result in one Arrow file (IPC, also known as Feather, version 2)."""

    @classmethod
    def check(cls, path: PathLike) -> None:
        """Raise ``OutputError`` where pyarrow is not installed."""
        if find_spec("pyarrow") is None:
            raise OutputError("this kind of table needs pyarrow", where=str(path), fix="pip install 'triosim[arrow]'")

    def write(self, result: Result, path: PathLike) -> None:
        """Write every figure as a row."""
        self.check(path)
        import pyarrow

        table = _table(result)
        with writing_bytes(path) as file, pyarrow.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)


class Parquet(Arrow):
    """All figures of a result in one Parquet file."""

    def write(self, result: Result, path: PathLike) -> None:
        """Write every figure as a row."""
        self.check(path)
        import pyarrow.parquet

        with writing_bytes(path) as file:
            pyarrow.parquet.write_table(_table(result), file)


def _table(result: Result) -> Any:
    import pyarrow

    names = pyarrow.dictionary(pyarrow.int32(), pyarrow.string())
    kinds = {"table": names, "item": pyarrow.string(), "quantity": names, "value": pyarrow.float64(), "unit": names}
    columns = zip(*figure_rows(result.data), strict=True)
    arrays = [pyarrow.array(column, kinds[name]) for name, column in zip(COLUMNS, columns, strict=True)]
    about = json.dumps({"title": result.title, "inputs": result.to_dict()["inputs"]})
    return pyarrow.table(arrays, pyarrow.schema(kinds.items(), metadata={"triosim": about}))
