"""A schedule from a CSV file with the columns rank, slot and action.

An action is written as PyTorch's pipeline schedules write it: stage, letter, micro-batch. F is forward, B backward, I and W
are the backward pass' parts for the input and for the weights: ``2F5``, ``2B5``. Slots say in which order a rank runs its
actions; two actions in one slot of a rank run side by side.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from triosim.errors import OptionError
from triosim.extrapolators.core.schedule_table import LETTERS, Action, ScheduleTable
from triosim.extrapolators.pipeline.schedule import PipelineSchedule
from triosim.output_files import PathLike, writing_text

_COLUMNS = ("rank", "slot", "action")
_ACTION = re.compile(r"(\d+)([FBIW])(\d+)", re.ASCII)
_PHASES = {letter: phase for phase, letter in LETTERS.items()}
_LIKE = "write stage, letter and micro-batch, such as 0F0: F forward, B backward, I and W its parts"


class CsvSchedule(PipelineSchedule):
    """The schedule in a file, which is for one number of ranks and of micro-batches."""

    @staticmethod
    def recognises(name: str) -> bool:
        """Whether a schedule's name is that of a file, and not of a class in one."""
        return Path(name).suffix not in ("", ".py") and not name.rpartition(":")[0].endswith(".py")

    def micro_batches(self, ranks: int) -> int:
        """Return how many micro-batches the file has."""
        return read_table(self.config.schedule).micro_batches

    def table(self, ranks: int, micro_batches: int) -> ScheduleTable:
        """Return the file's table."""
        path: str = self.config.schedule
        found = read_table(path)
        found.check_size(ranks, micro_batches, path)
        return found


def read_table(path: str) -> ScheduleTable:
    """Return the schedule that a file holds. Raises ``OptionError`` that names the line for what is wrong with it."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not text"
        raise OptionError(f"could not be read: {reason}", where=path, fix="give a CSV file") from None
    table = _Table(path)
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines or [cell.strip() for cell in lines[0][1].split(",")] != list(_COLUMNS):
        raise OptionError("has no such header", where=f"{path} line 1", fix=f"begin with {','.join(_COLUMNS)}")
    for number, line in lines[1:]:
        table.add(number, next(csv.reader([line])))
    return table.schedule()


def write_table(schedule: ScheduleTable, path: PathLike) -> None:
    """Write a schedule as such a file. Raises ``OutputError``."""
    with writing_text(path) as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(_COLUMNS)
        for rank, row in enumerate(schedule.rows):
            rows.writerows((rank, slot, str(action)) for slot, actions in enumerate(row) for action in actions)


@dataclass
class _Table:
    path: str
    lines: dict[tuple[int, Action], int] = field(default_factory=dict)
    rows: dict[int, list[tuple[int, Action]]] = field(default_factory=dict)  # by rank: slots and actions
    first: dict[Action, int] = field(default_factory=dict)  # the line that has an action

    def add(self, line: int, cells: list[str]) -> None:
        """Take one row in."""
        if len(cells) != len(_COLUMNS):
            raise self._wrong(line, f"{len(cells)} columns", f"give {', '.join(_COLUMNS)}")
        rank, slot = (self._number(line, name, cell) for name, cell in zip(_COLUMNS[:2], cells, strict=False))
        match = _ACTION.fullmatch(cells[2].strip())
        if match is None:
            raise self._wrong(line, f"'{cells[2].strip()}' is not an action", _LIKE)
        action = Action(int(match[1]), _PHASES[match[2]], int(match[3]))
        if action in self.first:
            raise self._wrong(line, f"{action} is there already, in line {self.first[action]}", "give each action once")
        self.first[action] = self.lines[rank, action] = line
        self.rows.setdefault(rank, []).append((slot, action))

    def schedule(self) -> ScheduleTable:
        """Return the schedule, once all rows are in."""
        if not any(action.phase == "forward" for action in self.first):
            raise OptionError("has no forward pass", where=self.path, fix=_LIKE)
        missing = next((rank for rank in range(max(self.rows)) if rank not in self.rows), None)
        if missing is not None:
            raise OptionError(f"gives rank {missing} nothing to do", where=self.path, fix="number ranks from 0")
        rows = []
        for rank in sorted(self.rows):
            ordered = sorted(self.rows[rank], key=lambda row: row[0])
            rows.append(
                tuple(tuple(action for _, action in slot) for _, slot in groupby(ordered, key=lambda row: row[0]))
            )
        found = ScheduleTable(tuple(rows), self._where)
        found.check()
        return found

    def _where(self, rank: int, action: Action) -> str:
        return f"{self.path} line {self.lines[rank, action]}"

    def _number(self, line: int, name: str, cell: str) -> int:
        text = cell.strip()
        if not (text.isascii() and text.isdigit()):
            raise self._wrong(line, f"{name} '{text}' is not a number", "count from 0")
        return int(text)

    def _wrong(self, line: int, what: str, fix: str) -> OptionError:
        return OptionError(what, where=f"{self.path} line {line}", fix=fix)
