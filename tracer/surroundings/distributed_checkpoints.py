"""Lets ``torch.distributed.checkpoint`` save what the running ranks hold, and load it again; each shard is a tensor's shape.

A checkpoint has the shards of the ranks that run, which need not be all. Of ranks that follow another one, the plan is that
one's, and counts once.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

from torch.distributed._shard.sharding_spec import _internals as internals
from torch.distributed.checkpoint import (
    _async_process_executor,
    _async_thread_executor,
    default_planner,
    state_dict_saver,
)
from torch.distributed.checkpoint.utils import _DistWrapper

from triosim.tracer.distributed.rank_exchange import RankExchange, members_of
from triosim.tracer.patches import Patch, Patches
from triosim.tracer.pytorch_version import required

_EXECUTORS = (
    (_async_thread_executor, "_ThreadBasedAsyncCheckpointExecutor"),
    (_async_process_executor, "_ProcessBasedAsyncCheckpointExecutor"),
)


def install(patches: Patches, exchange: RankExchange) -> None:
    """Let ranks plan together what they save until the patches are undone."""
    patches.make(_patches(exchange))
    checks = [required(internals, name) for name in ("validate_non_overlapping_shards_metadata", "check_tensor")]
    patches.rebind({id(check): _where_all_run(check, exchange) for check in checks})


def _patches(exchange: RankExchange) -> Iterator[Patch]:
    planner = default_planner.DefaultSavePlanner
    name = "_create_global_plan" if hasattr(planner, "_create_global_plan") else "create_global_plan"
    yield Patch(_DistWrapper, "__init__", _coordinating(required(_DistWrapper, "__init__"), exchange))
    yield Patch(planner, name, _each_once(required(planner, name)))
    lists = "list" in str(required(default_planner, "_validate_global_plan").__annotations__["return"])  # what is wrong
    yield Patch(default_planner, "_validate_global_plan", lambda *_: [] if lists else True)
    for module, name in _EXECUTORS:
        yield Patch(required(module, name), "execute_save", _at_once)


def _where_all_run(check: Any, exchange: RankExchange) -> Any:
    """Return a check that all shards make up a tensor, which those of the ranks that run need not."""
    return lambda *args, **kwargs: check(*args, **kwargs) if exchange.all_run else None


def _coordinating(make: Any, exchange: RankExchange) -> Any:
    """Return an initialiser by which a rank that stands for the one that plans a checkpoint plans it."""

    def __init__(self: Any, group: Any, use_dist: bool, coordinator_rank: int) -> None:  # noqa: N807
        make(self, group, use_dist, coordinator_rank)
        if use_dist:
            self.is_coordinator = exchange.holder(members_of(group), self.global_coordinator_rank) == exchange.rank

    return __init__


def _each_once(plan: Any) -> Any:
    """Return a function that plans with each different plan of a rank, and gives equal ranks the same part."""

    def create_global_plan(self: Any, all_plans: list[Any]) -> tuple[list[Any], Any]:
        different = list({id(one): one for one in all_plans}.values())
        found, metadata = plan(self, different)
        parts = {id(one): part for one, part in zip(different, found, strict=True)}
        return [parts[id(one)] for one in all_plans], metadata

    return create_global_plan


def _at_once(executor: Any, staged: Any, **options: Any) -> Any:
    """Save a checkpoint before ``async_save`` returns: writing takes no time."""
    done: Any = Future()
    options.pop("async_checkpointer_type", None)
    done.set_result(state_dict_saver.save(staged.result() if isinstance(staged, Future) else staged, **options))
    return done
