"""The constants that predictions rest on: their values and units, what they rest on, and what fits them again.

Only what was fitted to measurements, or taken from one, is here; a law's own numbers are in its module. The values are those
in use, so that the list cannot differ from what is predicted. ``fit`` and ``left_out`` are the mean errors (between nodes the
medians) that the script prints of what a constant was fitted to, and of sources, sizes or GPUs that were left out of the fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

from triosim.compute.models import alignment, grouped_products, roofline
from triosim.config.stacks import STACKS
from triosim.gpus import energy
from triosim.networks.calibration import doubt, internode
from triosim.results import uncertainty

_FIT = "python -m validation.steps.constant_fit"
_SPREAD = "python -m validation.steps.spread ROWS"
_IMAGES = "python -m validation.image_models.efficiencies --every 6"
_TABLES = "python -m validation.operator_constants"
_OF_STEPS = "published steps (docs/validation.md)"


@dataclass(frozen=True, slots=True)
class FittedConstant:
    """A constant in use. ``script`` fits it again; ``fit`` and ``left_out`` are relative errors, where it prints them."""

    name: str
    value: float
    unit: str
    source: str
    script: str = ""
    fit: float | None = None
    left_out: float | None = None


def fitted_constants() -> list[FittedConstant]:
    """Return all of them: of steps, of operators, of collectives, of doubt."""
    return [*_of_launches(), *_of_energy(), *_of_products(), *_of_classes(), *_between_nodes(), *_of_doubt()]


def as_values() -> list[dict[str, object]]:
    """Return them as plain values."""
    return [asdict(one) for one in fitted_constants()]


#: What ``constant_fit launch`` and ``call`` print, by stack and kind: in the fit, and with a model size and GPU left out.
_LAUNCH_ERRORS = {
    ("deepspeed", "launch"): (0.063, 0.076),
    ("deepspeed", "call"): (0.112, 0.113),
    ("te-fp8", "launch"): (0.069, 0.088),
    ("eager", "launch"): (0.100, 0.100),
}


def _of_launches() -> Iterator[FittedConstant]:
    for name, stack in STACKS.items():
        for kind, seconds in (("launch", stack.launch_seconds), ("call", stack.call_seconds)):
            if kind == "call" and stack.call_seconds == stack.launch_seconds:
                continue
            script, errors = f"{_FIT} {kind} {name}", _LAUNCH_ERRORS.get((name, kind), (None, None))
            yield FittedConstant(f"{kind}, {name}", seconds * 1e6, "us", stack.source, script, *errors)


def _of_energy() -> Iterator[FittedConstant]:
    fitted = {"hopper": (0.029, 0.044)}
    for name, one in energy.HALF.items():
        script = f"{_FIT} energy {name}" if name in ("hopper", "ampere") else _TABLES if name in _OF_PRODUCTS else ""
        errors = fitted.get(name, (None, None))
        yield FittedConstant(f"FLOP, {name}", one.joules * 1e12, "pJ", one.source, script, *errors)
    of_float32 = "float32 products of eight GPUs (NeuSight), each at the clock of its limit"
    yield FittedConstant("float32 FLOP, before Ada", energy.FLOAT32_OLD * 1e12, "pJ", of_float32, _TABLES, 0.167, 0.216)
    yield FittedConstant(
        "float32 FLOP, from Ada on", energy.FLOAT32_NEW * 1e12, "pJ", of_float32, _TABLES, 0.143, 0.217
    )


def _of_products() -> Iterator[FittedConstant]:
    of_experts = "steps of mixtures of experts on H100s to GB300s"
    script = f"{_FIT} experts grouped 40"
    yield FittedConstant("grouped products", grouped_products.SLOWDOWN, "times", of_experts, script, 0.110, 0.125)
    of_rows = "GPTs with 50,257 words on one node of A100s (vTrain)"
    script = f"{_FIT} alignment one 24"
    yield FittedConstant("product off 16 bytes", alignment.ONE_PRODUCT, "times", of_rows, script, 0.072, 0.076)


def _of_classes() -> Iterator[FittedConstant]:
    of_launch = "element-wise tables (NeuSight)"
    yield FittedConstant("kernel's launch", roofline.LAUNCH_SECONDS * 1e6, "us", of_launch, _TABLES, 0.072, 0.072)
    for name, one in roofline.DEFAULTS.items():
        source, script, errors = _OF_CLASSES.get(name, _OF_IMAGES)
        yield FittedConstant(f"{name}, of bandwidth", one.memory, "share", source, script, *errors)
        if name in roofline.ARITHMETIC or "tensor cores" in name:
            yield FittedConstant(f"{name}, of peak", one.compute, "share", source, script, *errors)
    script = "python -m validation.image_models.multiprocessors"
    for name, limit in roofline.MOST_BYTES_IN_A_CLOCK.items():
        source = "image models on one A100 and one V100 (DeepLearningExamples)"
        yield FittedConstant(f"{name}, of a multiprocessor", limit, "bytes a clock", source, script, 0.064, 0.067)


#: What the efficiencies of a class of ``roofline`` rest on, the script that fits them, and the errors that it prints.
_Basis = tuple[str, str, tuple[float | None, float | None]]
_OF_IMAGES: _Basis = ("steps of timm's models on an RTX 3090", _IMAGES, (0.099, 0.121))
_OF_CLASSES: Mapping[str, _Basis] = {
    "convolution": ("assumed, as products", "", (None, None)),
    "product": ("tables linear, bmm (NeuSight) and gemm_bf16 (aiconfigurator)", _TABLES, (0.255, 0.249)),
    "attention": ("table attention_causal_bf16 (aiconfigurator)", _TABLES, (0.353, 0.351)),
    "reduction": ("tables ln, softmax (NeuSight)", _TABLES, (0.190, 0.206)),
    "elementwise": ("table elem (NeuSight)", _TABLES, (0.072, 0.089)),
}
#: The architectures whose energy of a FLOP rests on long products alone, of which the same script prints the rates.
_OF_PRODUCTS = ("volta", "turing", "ada", "blackwell")


#: The medians that ``validation.internode`` prints below 1 MiB and from there on: in the fit, and of clusters left out of it.
_SMALL, _LARGE = (0.160, 0.263), (0.093, 0.123)


def _between_nodes() -> Iterator[FittedConstant]:
    kinds, shared = internode.constants()
    script, source = "python -m validation.internode", "nccl-tests on clouds (collectives/multi_node)"
    for name, kind in kinds.items():
        yield FittedConstant(f"hop, {name}", kind.hop * 1e6, "us", source, script, *_SMALL)
        yield FittedConstant(f"card, {name}", kind.efficiency, "share", source, script, *_LARGE)
    yield FittedConstant("launch between nodes", shared.launch * 1e6, "us", source, script, *_SMALL)
    yield FittedConstant("hop, simple protocol", shared.simple_hops, "hops", source, script, *_SMALL)
    yield FittedConstant("card, low-latency protocol", shared.low_latency_share, "share", source, script, *_SMALL)
    yield FittedConstant("chunk", shared.chunk / 1e6, "MB", source, script, *_LARGE)
    yield FittedConstant("hop of a ring", shared.ring_hop, "hops", source, script, *_SMALL)
    yield FittedConstant("peer of an all-to-all", shared.peer * 1e6, "us", source, script)


def _of_doubt() -> Iterator[FittedConstant]:
    of_steps = {
        uncertainty.LAUNCHES: uncertainty.LAUNCH_ERROR,
        uncertainty.BESIDE: uncertainty.SLOWDOWN_ERROR,
        uncertainty.STEP: uncertainty.STEP_ERROR,
        uncertainty.EXPERTS: uncertainty.EXPERTS_ERROR,
        uncertainty.FUSION: uncertainty.FUSION_ERROR,
    }
    for name, error in of_steps.items():
        yield FittedConstant(f"doubt, {name}", error, "share", _OF_STEPS, _SPREAD)
    script, source = "python -m validation.collectives", "clusters and generations that were left out"
    for name, one in (
        ("measured machine", doubt.ELSEWHERE),
        ("e-fold of bandwidth", doubt.PER_E_FOLD),
        ("unknown host", doubt.UNKNOWN_HOST),
    ):
        yield FittedConstant(f"doubt, bytes, {name}", one.moving, "share", source, script)
        yield FittedConstant(f"doubt, latency, {name}", one.latency, "share", source, script)
