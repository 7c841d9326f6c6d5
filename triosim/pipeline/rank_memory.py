"""``rank_memory``: the memory of every rank of a step, from a trace and the options of ``simulate``, without a simulation."""

from __future__ import annotations

from typing import Any

from triosim import plugins
from triosim.config import RunConfig, refuse_without_effect
from triosim.config.offload import Offload
from triosim.errors import OptionError
from triosim.extrapolators.core.plan import ParallelPlan
from triosim.garbage_collector import without_collecting
from triosim.memory.extrapolated_memory import ExtrapolatedMemory
from triosim.memory.tier_capacity import check_capacity
from triosim.pipeline.planning import plan_step, refuse_unknown
from triosim.pipeline.pricing import price
from triosim.pipeline.reading import TraceLike, read
from triosim.pipeline.system import system_of


def rank_memory(trace: TraceLike, parallel: Any = "single", **options: Any) -> ExtrapolatedMemory:
    """Return the memory of each rank of a training step on many GPUs; ``options`` are those of ``triosim.simulate``.

    ``gpu`` is what must hold it, by default the trace's; times, which only divide a pipeline into stages, are predicted for it.
    What is offloaded must fit the memories of the topology, by default the GPU's usual one.
    Raises ``TriosimError`` for whatever is wrong with the input, and for an option that memory does not depend on.
    """
    config = RunConfig.of(parallel=parallel, **options)
    refuse_without_effect(config, "memory")
    return memory_of_config(trace, config)


@without_collecting()
def memory_of_config(trace: TraceLike, config: RunConfig) -> ExtrapolatedMemory:
    """Do what ``rank_memory`` does, with the options in one value."""
    subject = read(trace, config)
    if subject.streams is not None:
        raise OptionError(
            f"the task streams of {subject.streams.world} ranks were captured, and their memory with them",
            where=subject.streams.source or "parallel",
            fix="leave out --parallel and its options, or capture the script with another parallelism",
        )
    priced = price(subject, config)
    asked = config.topology is not None or config.offload != "none"
    topology = system_of(subject, config).topology if asked else None
    with plugins.blamed():
        if topology is None:
            planned = plan_step(priced, config)
        else:
            gathering = topology.gathering_memories
            planned = plan_step(priced, config, gpus=len(topology.gpus), gathering_memories=gathering)
    assert isinstance(planned, ParallelPlan)  # which the tasks of a trace are
    refuse_unknown(config, (*priced.options_read, *planned.known_options))
    memory = ExtrapolatedMemory(planned, priced.subject.trace, priced.gpu)
    if topology is not None:
        check_capacity(Offload.of(config.offload, training=config.training), memory, topology)
    return memory
