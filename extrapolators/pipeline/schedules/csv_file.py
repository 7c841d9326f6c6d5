"""A schedule from a CSV file with the columns rank, slot and action.

An action is written as PyTorch's pipeline schedules write it: stage, letter, micro-batch. F is forward, B backward, I and W
are the backward pass' parts for the input and for the weights: ``2F5``, ``2B5``. Slots say in which order a rank runs its
actions; two actions in one slot of a rank run side by side.
"""

from __future__ import annotations

import csv
import re
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from triosim.errors import OptionError
from triosim.extrapolators.core.schedule_table import LETTERS, Action, ScheduleTable
from triosim.extrapolators.pipeline.schedule import PipelineSchedule
from triosim.input_files.reading import read_text
from triosim.output_files import PathLike, writing_text

_COLUMNS = ("rank", "slot", "action")
_ACTION = re.compile(r"(\d+)([FBIW])(\d+)", re.ASCII)
_PHASES = {letter: phase for phase, letter in LETTERS.items()}
_LIKE = "write stage, letter and micro-batch, such as 0F0: F forward, B backward, I and W its parts"


class CsvSchedule(PipelineSchedule):
    """The schedule in a file, for one number of ranks and of micro-batches."""

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
    text = read_text(Path(path), OptionError)
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines or [cell.strip() for cell in lines[0][1].split(",")] != list(_COLUMNS):
        raise OptionError("has no header of a schedule", where=f"{path} line 1", fix=f"begin with {','.join(_COLUMNS)}")
    line_of: dict[Action, int] = {}
    ranks: dict[int, list[tuple[int, Action]]] = {}  # slots and actions
    for number, line in lines[1:]:
        where = f"{path} line {number}"
        rank, slot, action = _row(line, where)
        if action in line_of:
            raise OptionError(
                f"{action} is already in line {line_of[action]}", where=where, fix="give each action once"
            )
        line_of[action] = number
        ranks.setdefault(rank, []).append((slot, action))
    if not any(action.phase == "forward" for action in line_of):
        raise OptionError("has no forward pass", where=path, fix=_LIKE)
    missing = next((rank for rank in range(max(ranks)) if rank not in ranks), None)
    if missing is not None:
        raise OptionError(f"gives rank {missing} nothing to do", where=path, fix="number ranks from 0")
    rows = []
    for rank in sorted(ranks):
        slots = groupby(sorted(ranks[rank], key=itemgetter(0)), key=itemgetter(0))
        rows.append(tuple(tuple(action for _, action in slot) for _, slot in slots))
    found = ScheduleTable(tuple(rows), lambda _, action: f"{path} line {line_of[action]}")
    found.check()
    return found


def write_table(schedule: ScheduleTable, path: PathLike) -> None:
    """Write a schedule as such a file. Raises ``OutputError``."""
    with writing_text(path) as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(_COLUMNS)
        for rank, row in enumerate(schedule.rows):
            rows.writerows((rank, slot, str(action)) for slot, actions in enumerate(row) for action in actions)


def _row(line: str, where: str) -> tuple[int, int, Action]:
    """Return the rank, the slot and the action of a row."""
    try:
        texts = [cell.strip() for cell in next(csv.reader([line]))]
    except csv.Error as error:
        raise OptionError(f"is no row of cells: {error}", where=where, fix=_LIKE) from None
    if len(texts) != len(_COLUMNS):
        raise OptionError(f"{len(texts)} columns", where=where, fix=f"give {', '.join(_COLUMNS)}")
    for name, text in zip(_COLUMNS[:2], texts, strict=False):
        if not (text.isascii() and text.isdigit() and len(text) < 10):
            raise OptionError(f"{name} '{text}' is not a number", where=where, fix="count from 0")
    match = _ACTION.fullmatch(texts[2])
    if match is None:
        raise OptionError(f"'{texts[2]}' is not an action", where=where, fix=_LIKE)
    return int(texts[0]), int(texts[1]), Action(int(match[1]), _PHASES[match[2]], int(match[3]))
