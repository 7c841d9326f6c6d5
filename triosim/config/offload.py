"""What is kept in memories outside of GPUs: ``--offload optimizer=host,parameters=nvme,activations=host``, read.

Offload is that of ZeRO-Offload (Ren et al. 2021), of ZeRO-Infinity (Rajbhandari et al. 2021), of FSDP2's ``CPUOffloadPolicy``,
and of the activations of Megatron-Core, Transformer Engine and torchtitan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from triosim.errors import OptionError, nearest
from triosim.tasks import Tier

#: The memories, by tier, in which each part of a step can be kept.
TIERS: Mapping[str, tuple[Tier, ...]] = {
    "optimizer": ("host", "nvme"),
    "parameters": ("host", "nvme", "expansion", "pool"),
    "activations": ("host", "expansion", "pool"),
}
_WHERE = "--offload"


@dataclass(frozen=True, slots=True)
class Offload:
    """The tier of the memory in which each part of a step is kept; None on the GPU.

    The optimizer's are its states; the CPU then updates parameters.
    """

    optimizer: Tier | None = None
    parameters: Tier | None = None
    activations: Tier | None = None

    @classmethod
    def of(cls, text: str, *, training: bool = True) -> Offload:
        """Return what an option says, its parts divided by ``,`` or, in a list of values, ``+``.

        Raises ``OptionError`` for what cannot be.
        """
        found: dict[str, Tier] = {}
        for entry in [] if text == "none" else text.replace("+", ",").split(","):
            part, _, said = (word.strip() for word in entry.partition("="))
            if part not in TIERS:
                raise OptionError(f"'{part}' is nothing that can be offloaded", where=_WHERE, fix=nearest(part, TIERS))
            tier = next((tier for tier in TIERS[part] if tier == said), None)
            if tier is None:
                what = f"{part} cannot be kept in '{said}'" if said else f"'{part}' does not say where it is kept"
                raise OptionError(what, where=_WHERE, fix=f"write {part}={' or '.join(TIERS[part])}")
            if part in found:
                raise OptionError(f"'{part}' is given twice", where=_WHERE, fix="give it once")
            found[part] = tier
        offload = cls(**found)
        if training and offload.parameters and not offload.optimizer:
            what = "parameters that are not on the GPU are updated by the CPU, whose optimizer is not offloaded"
            raise OptionError(what, where=_WHERE, fix=f"write {text},optimizer=host")
        if not training and (offload.optimizer or offload.activations):
            what = "inference has no optimizer, and keeps no activations for a backward pass"
            raise OptionError(what, where=_WHERE, fix="write parameters=host, or leave out --inference")
        return offload

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """The tiers that anything is kept in, each once; drives are read and written through the host's memory."""
        kept = [one for one in (self.optimizer, self.parameters, self.activations) if one]
        through: list[Tier] = ["host"] if "nvme" in kept or self.optimizer else []
        return tuple(dict.fromkeys((*through, *kept)))
