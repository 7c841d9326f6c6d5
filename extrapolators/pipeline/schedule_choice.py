"""Finds the pipeline schedule that a user names: one that ships, a plug-in, or a CSV file."""

from __future__ import annotations

from triosim import plugins
from triosim.config import RunConfig, takes_text
from triosim.config.run_config import option_named
from triosim.errors import OptionError, PluginError
from triosim.extrapolators.core.schedule_table import ScheduleTable
from triosim.extrapolators.pipeline.schedule import PipelineSchedule
from triosim.extrapolators.pipeline.schedules.csv_file import CsvSchedule
from triosim.input_files.limits import ACTIONS


def chosen_schedule(config: RunConfig) -> PipelineSchedule:
    """Return the schedule that a configuration names.

    Raises ``PluginError`` where there is none of this name, ``OptionError`` for an option that only other schedules declare.
    """
    found = _schedule_class(config.schedule)
    declared = {option.name for option in found.options}
    for name, of in _schedules_by_option().items():
        if name not in declared and config.is_given(name):
            what = name.replace("_", " ")
            if found is CsvSchedule:
                said = f"'{config.schedule}' says by itself how many {what} a rank has"
                raise OptionError(said, where=what, fix=f"leave {option_named(name).where} out")
            fix = f"choose the schedule {' or '.join(of)}"
            raise OptionError(f"'{config.schedule}' has no {what}", where=what, fix=fix)
    return found(config)


def table_of(schedule: PipelineSchedule, ranks: int, micro_batches: int, *, training: bool = True) -> ScheduleTable:
    """Return a schedule's table for these numbers of pipeline ranks and micro-batches; for inference, its forward passes."""
    ACTIONS.check(2 * ranks * micro_batches, f"{micro_batches} micro-batches in {ranks} stages")
    table = schedule.table(ranks, micro_batches)
    if not isinstance(table, ScheduleTable):
        raise PluginError(
            f"table() returned a {type(table).__name__}", where=type(schedule).__name__, fix="return a ScheduleTable"
        )
    if not type(schedule).__module__.startswith("triosim."):
        table.check_size(ranks, micro_batches, type(schedule).__name__)
        table.check()
    if not training:
        return table.forward_alone()
    table.check_training()
    return table


def _schedule_class(name: str | type) -> type[PipelineSchedule]:
    if isinstance(name, str) and CsvSchedule.recognises(name):
        return CsvSchedule
    found = plugins.find("schedules", name)
    if not (isinstance(found, type) and issubclass(found, PipelineSchedule)):
        raise PluginError("is not a class derived from triosim.extrapolators.PipelineSchedule", where=str(name))
    return found


def _schedules_by_option() -> dict[str, list[str]]:
    """Return which of the schedules that ship declare an option with a flag of its own."""
    found: dict[str, list[str]] = {}
    for name in plugins.BUILT_IN["schedules"]:
        for option in _schedule_class(name).options:
            if not takes_text(option):
                found.setdefault(option.name, []).append(name)
    return found
