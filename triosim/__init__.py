"""triosim predicts the time and the memory of deep-network training on many GPUs from a trace of one GPU.

    import triosim

    result = triosim.simulate("trace.json", parallel="ddp", topology="dgx-h100")
    print(result)

simulate, compare and search answer with a Result, a Comparison and a SearchResult; rank_memory tells the memory of a rank.
load_trace and save_trace read and write a Trace of Operators with Tensors, describe makes one of a model's name. A Topology is
a network. What is wrong with an input raises TriosimError. Everything else in the package may change.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as typing has it, whose import is most of the time in which nothing handles Ctrl-C

if TYPE_CHECKING:
    from typing import Any

    from triosim.comparison.strategies import Comparison as Comparison
    from triosim.comparison.strategies import compare as compare
    from triosim.configuration_search.answer.result import SearchResult as SearchResult
    from triosim.configuration_search.search import search as search
    from triosim.errors import TriosimError as TriosimError
    from triosim.models.description import describe as describe
    from triosim.networks.topology import Topology as Topology
    from triosim.pipeline.rank_memory import rank_memory as rank_memory
    from triosim.results.result import Result as Result
    from triosim.simulation import simulate as simulate
    from triosim.trace import Operator as Operator
    from triosim.trace import Tensor as Tensor
    from triosim.trace import Trace as Trace
    from triosim.trace.formats import read as load_trace
    from triosim.trace.formats import write as save_trace

__version__ = "0.1.0"

__all__ = [
    "Comparison", "Operator", "Result", "SearchResult", "Tensor", "Topology", "Trace", "TriosimError", "compare", "describe",
    "load_trace", "rank_memory", "save_trace", "search", "simulate",
]  # fmt: skip

#: Where each public name is; imported when it is first asked for, so that ``import triosim`` costs nothing.
_PLACES = {
    "Comparison": "triosim.comparison.strategies:Comparison",
    "Operator": "triosim.trace:Operator",
    "Result": "triosim.results.result:Result",
    "SearchResult": "triosim.configuration_search.answer.result:SearchResult",
    "Tensor": "triosim.trace:Tensor",
    "Topology": "triosim.networks.topology:Topology",
    "Trace": "triosim.trace:Trace",
    "TriosimError": "triosim.errors:TriosimError",
    "compare": "triosim.comparison.strategies:compare",
    "describe": "triosim.models.description:describe",
    "load_trace": "triosim.trace.formats:read",
    "save_trace": "triosim.trace.formats:write",
    "search": "triosim.configuration_search.search:search",
    "rank_memory": "triosim.pipeline.rank_memory:rank_memory",
    "simulate": "triosim.simulation:simulate",
}


def __getattr__(name: str) -> Any:
    import importlib

    if name not in _PLACES:
        raise AttributeError(f"module 'triosim' has no attribute '{name}'")
    module, _, attribute = _PLACES[name].partition(":")
    value = getattr(importlib.import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
