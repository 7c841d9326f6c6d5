"""Presets: the topologies of known systems, from their public data sheets, scaled to several nodes.

Bandwidths are of one direction, per GPU: the data sheet's peak, unless a note says that it is what is achieved. Latencies are
assumptions of the size that is commonly measured: NVLink and NVSwitch 1 us from GPU to GPU, InfiniBand 2 us, PCIe 1 us.

Between nodes there is one fabric that is never a bottleneck itself: a GPU (or the GPUs that share a network card)
enters it by a link of the card's speed. Every node has a host memory that each of its GPUs reaches by its own PCIe link.
"""

from __future__ import annotations

from dataclasses import dataclass

from triosim.networks.topology.shapes import ShapeSpec, Wire

GB = 1e9  # bytes per second
US = 1e-6

# PCIe x16, one direction, achieved: about 80% of the peak 16, 32 and 64 GB/s.
_PCIE3 = Wire(12.5 * GB, US)
_PCIE4 = Wire(25 * GB, US)
_PCIE5 = Wire(50 * GB, US)


@dataclass(frozen=True, slots=True)
class Preset:
    """A system: its topology, and the sources of its figures."""

    spec: ShapeSpec
    note: str


def _nvswitch(name: str, gpus: int, bandwidth: float, card: Wire, host: Wire, *, reduces: bool = False) -> ShapeSpec:
    """``reduces``: the switch adds up and multicasts (NVLS, since the third NVSwitch generation)."""
    return ShapeSpec(
        *("switch", bandwidth, US / 2),
        name=name,
        gpus_per_node=gpus,
        inter_node=card,
        host=host,
        in_switch_reduction=reduces,
    )


PRESETS: dict[str, Preset] = {
    "dgx-a100": Preset(
        _nvswitch("dgx-a100", 8, 300 * GB, Wire(25 * GB, US), _PCIE4),
        "8 x A100-SXM; NVSwitch 300 GB/s peak; 200 Gb/s InfiniBand a GPU",
    ),
    "dgx-h100": Preset(
        _nvswitch("dgx-h100", 8, 450 * GB, Wire(50 * GB, US), _PCIE5, reduces=True),
        "8 x H100-SXM; NVSwitch 450 GB/s peak, reduces in the switch (NVLS); 400 Gb/s InfiniBand a GPU",
    ),
    "dgx-h200": Preset(
        _nvswitch("dgx-h200", 8, 450 * GB, Wire(50 * GB, US), _PCIE5, reduces=True),
        "8 x H200-SXM; NVSwitch 450 GB/s peak, reduces in the switch (NVLS); 400 Gb/s InfiniBand a GPU",
    ),
    "dgx-b200": Preset(
        _nvswitch("dgx-b200", 8, 900 * GB, Wire(50 * GB, US), _PCIE5, reduces=True),
        "8 x B200; NVSwitch 900 GB/s peak, NVLS; 400 Gb/s InfiniBand a GPU",
    ),
    "dgx-1-v100": Preset(
        ShapeSpec(
            "hybrid_cube_mesh",
            25 * GB,
            US,
            name="dgx-1-v100",
            inter_node=Wire(12.5 * GB, US, gpus_per_nic=2),
            host=_PCIE3,
        ),
        "8 x V100-SXM2; NVLinks of 25 GB/s peak, half of the pairs have two; 4 x 100 Gb/s InfiniBand, each for two GPUs",
    ),
    "dgx-2": Preset(
        _nvswitch("dgx-2", 16, 150 * GB, Wire(12.5 * GB, US, gpus_per_nic=2), _PCIE3),
        "16 x V100; NVSwitch 150 GB/s peak; 8 x 100 Gb/s InfiniBand, each for two GPUs",
    ),
    "a40-pcie": Preset(
        ShapeSpec("pcie_tree", 25 * GB, US, name="a40-pcie", gpus=2),
        "2 x A40 at the root complex of one host; PCIe 4.0 x16, 25 GB/s achieved (32 peak)",
    ),
    "tpu-v4": Preset(
        ShapeSpec("torus", 50 * GB, US / 2, name="tpu-v4", dimensions=3, default_gpus=64, host=Wire(12.5 * GB, US)),
        "3D torus, as even as the number of chips allows (64: 4 x 4 x 4); 6 links a chip of 50 GB/s peak; "
        "the host link is an assumption",
    ),
    "wafer-84": Preset(
        ShapeSpec("mesh", 60.5 * GB, US / 2, name="wafer-84", shape=(12, 7), host=_PCIE4),
        "12 x 7 mesh of A100-class GPUs on a wafer (TrioSim 7.1); the paper gives no link bandwidth: 60.5 GB/s is one of the "
        "8 channels of 484 GB/s in its photonic study, so say your own, as in wafer-84(bandwidth=100 GB/s)",
    ),
}
