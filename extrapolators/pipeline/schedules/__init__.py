"""Pipeline schedules by name, one file each, and those of one's own from a file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from triosim.errors import OptionError, nearest
from triosim.extrapolators.core.schedule import ScheduleTable
from triosim.extrapolators.pipeline.schedules.dualpipe import dualpipe, least_micro_batches
from triosim.extrapolators.pipeline.schedules.gpipe import gpipe
from triosim.extrapolators.pipeline.schedules.interleaved import interleaved
from triosim.extrapolators.pipeline.schedules.one_f_one_b import one_f_one_b
from triosim.extrapolators.pipeline.schedules.table import read_table
from triosim.extrapolators.pipeline.schedules.zero_bubble import zero_bubble

#: From places (ranks of the pipeline) and micro-batches to what each place does.
MAKERS: dict[str, Callable[[int, int], ScheduleTable]] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "zero-bubble": zero_bubble,
    "dualpipe": dualpipe,
}
INTERLEAVED = "interleaved"
NAMES = (*MAKERS, INTERLEAVED)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The schedule that a user asks for by name or file; ``virtual_stages`` are those of a rank, for ``interleaved``."""

    name: str
    places: int
    virtual_stages: int | None = None

    def micro_batches(self) -> int:
        """Return how many micro-batches there are where the user does not say: as many as ranks, or what it needs."""
        if self.name == "dualpipe":
            return least_micro_batches(self.places)
        return self.places if self.name in NAMES else self._table().micro_batches

    def schedule(self, micro_batches: int, *, training: bool = True) -> ScheduleTable:
        """Return the schedule. Raises ``OptionError`` where there is none of this name, or of so many micro-batches."""
        if self.virtual_stages is not None and self.name != INTERLEAVED:
            raise OptionError(
                f"'{self.name}' has no virtual stages", where="virtual stages", fix=f"choose the schedule {INTERLEAVED}"
            )
        if self.name == INTERLEAVED:
            found = interleaved(self.places, micro_batches, self._chunks())
        elif self.name in MAKERS:
            found = MAKERS[self.name](self.places, micro_batches)
        else:
            found = self._table()
            self._check_size(found, micro_batches)
        return found if training else found.forward_alone()

    def _chunks(self) -> int:
        chunks = 2 if self.virtual_stages is None else self.virtual_stages
        if chunks < 2:
            raise OptionError(f"{chunks} a rank", where="virtual stages", fix="give 2 or more, or choose 1f1b")
        return chunks

    def _table(self) -> ScheduleTable:
        if not Path(self.name).suffix:
            raise OptionError(f"unknown schedule '{self.name}'", where="schedule", fix=nearest(self.name, NAMES))
        return read_table(self.name)

    def _check_size(self, found: ScheduleTable, micro_batches: int) -> None:
        for have, asked, what in (
            (len(found.rows), self.places, "pipeline ranks"),
            (found.micro_batches, micro_batches, "micro-batches"),
        ):
            if have != asked:
                raise OptionError(f"is for {have} {what}, not {asked}", where=self.name, fix="let the two agree")
