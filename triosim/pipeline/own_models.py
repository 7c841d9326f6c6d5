"""The user's own operator models in a step of the pipeline: those that ``--models`` names, before the ones that ship."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import ParamSpec, TypeVar

from triosim.compute.learned import model_files
from triosim.config import RunConfig

Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")


def with_own_models(step: Callable[Arguments, Returned]) -> Callable[Arguments, Returned]:
    """Let a function predict with the models that its argument ``config``, a ``RunConfig``, names."""
    parameters = signature(step)

    @wraps(step)
    def run(*given: Arguments.args, **named: Arguments.kwargs) -> Returned:
        config: RunConfig = parameters.bind(*given, **named).arguments["config"]
        with model_files.using(config.models):
            return step(*given, **named)

    return run
