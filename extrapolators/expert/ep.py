"""Expert parallelism: each rank has some of the experts of a layer, and all-to-alls send tokens to their experts and back.

Lepikhin et al. 2020 ("GShard"); Fedus et al. 2021. It adds no ranks: the ranks that see other data divide the experts among
themselves. Around the experts of a layer there are all-to-alls, of tokens to their experts (dispatch) and back (combine), in
the forward pass and, with gradients, in the backward pass; after each a copy puts rows in order. The number of rows from each
rank to each is drawn (``triosim.extrapolators.expert.expert_loads``), for each layer and iteration. So ranks at different
coordinates of the axis run different programs: each computes the rows that its own experts receive, and those with few wait for
the busiest in the combine. Experts are sharded, and their gradients reduced, among the ranks that have the same experts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from triosim.config import Option
from triosim.config.run_config import RunConfig
from triosim.extrapolators.core.extrapolator import EXPERT_ORDER, Extrapolator
from triosim.extrapolators.core.flags import EP_OVERLAP, EP_TRANSPORT
from triosim.extrapolators.core.mesh import Mesh
from triosim.extrapolators.core.program import Program
from triosim.extrapolators.expert.deepep import DeepEPSettings
from triosim.extrapolators.expert.expert_loads import LOADS, LoadDistribution, TokenExchange
from triosim.extrapolators.expert.expert_sharding import ExpertSharding
from triosim.extrapolators.expert.moe_layers import MoELayers
from triosim.tasks import EXPERT_LIBRARIES


class ExpertParallel(Extrapolator):
    """The parallelism ``ep``: shards the experts of each layer over ranks that see different tokens."""

    axis = "ep"
    level = "operators"
    order = EXPERT_ORDER
    adds_ranks = False
    options = (
        Option("load", "choice", LOADS[0], choices=LOADS,
               help="ep: the distribution of tokens over experts; all but balanced and consecutive are drawn at random."),
        Option("skew", "number", 1.0, "ep, load zipf: the exponent of the distribution."),
        Option("seed", "whole", 0, "ep: the seed of the drawn loads.", least=0),
        Option("capacity", "number", None,
               "ep: the most tokens that an expert takes, as a multiple of the mean; others are dropped. By default no limit."),
        EP_TRANSPORT,
        EP_OVERLAP,
        Option("deepep_sms", "whole", 20, least=2, unit="multiprocessors",
               help="ep, deepep or hybridep: multiprocessors of a kernel for training; 20 is DeepEP's default."),
        Option("deepep_dispatch", "choice", "fp8", choices=("fp8", "as-is"),
               help="ep, deepep or hybridep: tokens are dispatched in fp8 with a scale for each 128, or in their own dtype."),
    )  # fmt: skip

    def __init__(self, size: int, config: RunConfig, name: str = "") -> None:
        super().__init__(size, config, name)
        self._layers: MoELayers | None = None  # of the program that was transformed last
        self._sharding: ExpertSharding | None = None  # in the iteration that was transformed last
        self._drawn: dict[tuple[int, int, int, int], TokenExchange] = {}

    @property
    def identical_ranks(self) -> bool:  # type: ignore[override]  # it depends on the options
        """Whether all ranks do the same: where all experts get as many tokens."""
        return not self.is_random

    @property
    def is_random(self) -> bool:
        """Whether tokens are drawn, anew for each iteration."""
        return self._distribution.is_random

    @property
    def differs_along_axis(self) -> bool:
        """Whether ranks run different programs: where tokens are drawn."""
        return self.is_random and self.size > 1

    def transform(self, program: Program, mesh: Mesh) -> Program:
        """Return the program of a rank with its share of the experts."""
        if self.size == 1:
            return program
        # Ranks and iterations transform one program, which is analysed once: its stages are the same object, not only equal.
        if self._layers is None or self._layers.program.stages is not program.stages:
            self._layers = MoELayers(program, self.axis, self.size)
        exchanges = self._exchanges(self._layers, program.iteration)
        deepep = self._deepep
        if deepep is not None:
            sizes = [deepep.buffer_bytes(one, self.size, training=program.training) for one in self._layers.found]
            own = f"{EXPERT_LIBRARIES[deepep.library]}'s buffers", max(sizes)
            program = replace(program, buffers=(*program.buffers, own))
        sharding = self._sharding
        if sharding is None or sharding.layers is not self._layers or sharding.exchanges != exchanges:
            sharding = self._sharding = ExpertSharding(program, self._layers, exchanges, deepep)
        return sharding.program(program, program.coordinate(self.axis)).noted(*self._notes(exchanges))

    @property
    def _deepep(self) -> DeepEPSettings | None:
        config = self.config
        if config.ep_transport == "nccl":
            return None
        consecutive = config.load == "consecutive"
        return DeepEPSettings(config.deepep_sms, config.deepep_dispatch == "fp8", config.ep_transport, consecutive)

    def _exchanges(self, layers: MoELayers, iteration: int) -> list[TokenExchange]:
        """Return the exchange of each layer in an iteration, the same for all ranks."""
        found = []
        for number, layer in enumerate(layers.found):
            key = (iteration, number, layer.experts, layer.rows)
            if key not in self._drawn:
                counts = (self.size, layer.experts, layer.rows)
                drawn = self._distribution.tokens(*counts, layer=number, iteration=iteration)
                self._drawn[key] = TokenExchange(*drawn)
            found.append(self._drawn[key])
        return found

    def _notes(self, exchanges: Sequence[TokenExchange]) -> Iterable[str]:
        loads = self._distribution
        if loads.is_random:
            skewed = "" if loads.load == "uniform" else f", skew {loads.skew:g}"
            yield f"{self.axis}: expert loads are drawn at random ({loads.load}{skewed}, seed {loads.seed})"
        if self._deepep is not None:
            dispatched = "fp8, with a scale for each 128 values" if self._deepep.fp8 else "their own dtype"
            yield f"{self.axis}: {EXPERT_LIBRARIES[self._deepep.library]} dispatches tokens in {dispatched}"
        if dropped := sum(one.dropped for one in exchanges):
            share = dropped / (sum(one.kept for one in exchanges) + dropped)
            yield f"{self.axis}: with a capacity factor of {loads.capacity:g}, {share:.1%} of the tokens are dropped"

    @property
    def _distribution(self) -> LoadDistribution:
        return LoadDistribution(self.config.load, self.config.skew, self.config.seed, self.config.capacity)
