"""The interface of pipeline schedules, plug-ins of the group ``triosim.schedules``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from triosim.config import Option, RunConfig
from triosim.extrapolators.core.schedule_table import ScheduleTable


class PipelineSchedule(ABC):
    """Derive from this and override ``table``, and ``micro_batches`` where as many as the pipeline has ranks do not do.

    ``options`` declares the options that the schedule reads; their values are attributes of ``config``.
    """

    options: ClassVar[tuple[Option, ...]] = ()

    def __init__(self, config: RunConfig) -> None:
        self.config = config.of_part(type(self))

    def micro_batches(self, ranks: int) -> int:
        """Return into how many micro-batches a batch is divided where the user does not say: as many as ranks."""
        return ranks

    @abstractmethod
    def table(self, ranks: int, micro_batches: int) -> ScheduleTable:
        """Return what each of a pipeline's ranks runs, in order. Raises ``OptionError`` for numbers that cannot be."""
