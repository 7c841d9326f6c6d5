"""The user's own operator models in a step of the pipeline: those that ``--models`` names, before the ones that ship."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from triosim.compute.learned import model_files
from triosim.config import RunConfig

Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")


def with_own_models(step: Callable[Arguments, Returned]) -> Callable[Arguments, Returned]:
    """Let a function predict with the models that its configuration, one of its arguments, names."""

    @wraps(step)
    def run(*given: Arguments.args, **named: Arguments.kwargs) -> Returned:
        config = next(one for one in (*given, *named.values()) if isinstance(one, RunConfig))
        with model_files.using(config.models):
            return step(*given, **named)

    return run
