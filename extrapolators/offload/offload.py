"""Applies ``--offload`` to a program: the CPU updates parameters, and activations leave the GPU for a while.

It comes after all parallelisms, so that a rank offloads its own share of what they divide. The parameters of ``fsdp`` are its
own to fetch (:mod:`triosim.extrapolators.offload.parameters`).
"""

from __future__ import annotations

from dataclasses import replace

from triosim.config.offload import Offload
from triosim.errors import OptionError
from triosim.extrapolators.core.extrapolator import Extrapolator
from triosim.extrapolators.core.hooks import require_gradients
from triosim.extrapolators.core.mesh import Mesh
from triosim.extrapolators.core.program import Gradient, Program, RankHooksFactory, Stage
from triosim.extrapolators.offload.activations import with_offloaded_activations
from triosim.extrapolators.offload.optimizer import HostOptimizer, OptimizerBytes, OptimizerPlan

#: How ranks get several threads each, which an update at the rate of the memory needs.
_THREADS = "torchrun sets OMP_NUM_THREADS=1 unless it is set, and deepspeed divides the cores with --bind_cores_to_rank"


class Offloading(Extrapolator):
    """Moves what ``--offload`` says to memories outside of GPUs."""

    axis = "offload"
    level = "schedule"
    identical_ranks = True

    def transform(self, program: Program, mesh: Mesh) -> Program:
        """Return the program that offloads."""
        offload = Offload.of(self.config.offload, training=program.training)
        if offload.activations is not None:
            program = with_offloaded_activations(program, offload.activations)
        if offload.parameters is not None and "fsdp" not in program.sharded_axes:
            what = "every GPU needs all of its parameters at once unless fsdp gathers them unit by unit"
            raise OptionError(what, where="--offload parameters", fix="use --parallel fsdp, on one GPU too")
        if not (offload.optimizer or offload.parameters):
            return program
        if program.training:
            require_gradients(program)
        if offload.optimizer is not None:
            if not any(stage.optimizer for stage in program.stages) and not any(program.optimizers):
                what = "the step has no optimizer whose states could be offloaded"
                raise OptionError(
                    what, where="--offload optimizer", fix="leave it out, or describe one: --optimizer adamw"
                )
            program = program.noted(
                f"the CPU updates parameters at the rate of its memory, for which each rank needs several threads: {_THREADS}"
            )
        reduced = _are_reduced(program, mesh)
        if offload.optimizer is not None and reduced[False] and not program.sharded_axes:
            program = program.noted(
                "the host of each GPU updates all parameters, as nothing divides the optimizer; zero1, zero2 and fsdp do"
            )

        def make(stage: Stage, gradients: tuple[Gradient, ...]) -> RankHooksFactory:
            unshared = frozenset(
                one.parameter.id for one in gradients if not reduced[one.parameter.storage in program.experts]
            )
            sizes = OptimizerBytes.of(stage)
            plan = OptimizerPlan(offload, sizes, gradients, frozenset() if offload.parameters else unshared)
            return lambda context: HostOptimizer(context, plan)

        return replace(program, hooks=(((), make), *program.hooks))


def _are_reduced(program: Program, mesh: Mesh) -> dict[bool, bool]:
    """Whether several ranks have the same dense parameters (False), or the same experts (True), and reduce gradients."""
    return {
        experts: bool(program.data_axes)
        and len(mesh.group(program.replica_axes(program.data_axes, experts=experts), 0).ranks) > 1
        for experts in ((False, True) if program.experts else (False,))
    }
