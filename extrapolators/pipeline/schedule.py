"""The interface of pipeline schedules, plug-ins of the group ``triosim.schedules``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from triosim.config import Option, RunConfig
from triosim.extrapolators.core.schedule_table import ScheduleTable


class PipelineSchedule(ABC):
    """Base class of schedules: override ``table``, and ``micro_batches`` where its default, as many as ranks, is not allowed.

    ``options`` declares the options that the schedule reads; their values are attributes of ``config``.
    """

    options: ClassVar[tuple[Option, ...]] = ()

    def __init__(self, config: RunConfig) -> None:
        self.config = config.of_part(type(self))

    def micro_batches(self, ranks: int) -> int:
        """Return the default number of micro-batches of a batch: as many as pipeline ranks."""
        return ranks

    @abstractmethod
    def table(self, ranks: int, micro_batches: int) -> ScheduleTable:
        """Return what each pipeline rank runs, in order. Raises ``OptionError`` for numbers that are not allowed."""
