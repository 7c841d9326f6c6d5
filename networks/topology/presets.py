"""Presets: the topologies of known systems, from their public data sheets, scaled to several nodes.

Bandwidths are of one direction, per GPU: the data sheet's peak, unless a note says that it is what is achieved. Latencies are
assumptions of the size that is commonly measured: NVLink and NVSwitch 1 us from GPU to GPU, InfiniBand 2 us, PCIe 1 us.

Between nodes there is one fabric that is never a bottleneck itself: a GPU (or the GPUs that share a network card)
enters it by a link of the card's speed. Every node has a host memory that its GPUs reach over PCIe. How large and how fast that
and the drives are is said where documents say it, for each socket: a process has its memory at the CPU that its GPU is linked
to. How many GPUs and network cards a node with PCIe boards has is an assumption: servers of many makes have them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from triosim.networks.topology.memories import Drives, HostLink, HostMemory, NodeMemories
from triosim.networks.topology.shapes import ShapeSpec, Wire

GB = 1e9  # bytes per second
TB = 1e12  # bytes
US = 1e-6

# PCIe x16, one direction, achieved: about 80% of the peak 16, 32, 64 and 128 GB/s.
_PCIE3 = NodeMemories(HostLink(12.5 * GB, US))
_PCIE4 = NodeMemories(HostLink(25 * GB, US))
_PCIE5 = NodeMemories(HostLink(50 * GB, US))
_PCIE6 = NodeMemories(HostLink(100 * GB, US))
_UNIFIED = NodeMemories(HostLink(136.5 * GB, US))


def _dram(capacity: float, peak: float) -> HostMemory:
    """Main memory of so many TB and GB/s of its data sheet, of which about 80% are achieved (STREAM, McCalpin 1995)."""
    return HostMemory(capacity * TB, 0.8 * peak * GB)


def _drives(capacity: float, read: float, write: float) -> Drives:
    """Drives of so many TB, and GB/s of sequential reads and writes; 100 us is the usual latency of flash."""
    return Drives(capacity * TB, read * GB, write * GB, 100 * US)


# Two EPYC 7742 with 8 channels of DDR4-3200 each, four PCIe switches, each with two GPUs and one x16 link to a CPU; 8 x 3.84 TB
# of PCIe 4 drives, 50 GB/s peak (NVIDIA, DGX A100 user guide and data sheet of the 640 GB system; 4 GB/s a drive of writes).
_DGX_A100 = NodeMemories(
    HostLink(25 * GB, US, gpus_per_link=2, gpus_per_host=4), _dram(1, 204.8), _drives(15.35, 25, 16)
)
# Two Xeon 8480C with 8 channels of DDR5-4800 each, an x16 link for each GPU (504 GB/s for all: NVIDIA's MLPerf submissions);
# drives as in a DGX A100 (DGX H100 user guide).
_DGX_H100 = NodeMemories(HostLink(50 * GB, US, gpus_per_host=4), _dram(1, 307.2), _drives(15.35, 25, 16))
# Two Xeon 8570 with 8 channels of DDR5-5600 each (DGX B200 user guide).
_DGX_B200 = NodeMemories(HostLink(50 * GB, US, gpus_per_host=4), _dram(1, 358.4), _drives(15.35, 25, 16))
# Two Xeon 8168 with 6 channels of DDR4-2666 each; 16 GPUs together have 48 GB/s to host memory, 3 each, and 25 GB/s from the
# drives (Rajbhandari et al. 2021, ZeRO-Infinity, figure 2b): four x16 links. Writes of the drives are an assumption.
_DGX_2 = NodeMemories(
    HostLink(12.5 * GB, US, gpus_per_link=4, gpus_per_host=8), _dram(0.75, 128), _drives(15.35, 12.8, 8)
)
# Two Xeon E5-2698 v4 with 4 channels of DDR4-2133 each, and four PCIe switches; its drives are SATA (DGX-1 user guide).
_DGX_1 = NodeMemories(HostLink(12.5 * GB, US, gpus_per_link=2, gpus_per_host=4), _dram(0.256, 68.25))
# A Grace with 480 GB of LPDDR5X, 512 GB/s peak, for one GPU or two; NVLink-C2C 450 GB/s peak (NVIDIA Grace CPU data sheet). A
# tray of two Graces has four E1.S drives (NVIDIA, enterprise reference architecture of the NVL72; DGX GB200 user guide,
# "Storage"); that each is like one of a DGX H100's is an assumption.
_GRACE = NodeMemories(HostLink(450 * GB, US), _dram(0.48, 512))
_GRACE_PAIR = NodeMemories(HostLink(225 * GB, US, gpus_per_host=2), _dram(0.48, 512), _drives(2 * 3.84, 12.5, 8))
# A desktop: two channels of DDR5-5600 and a PCIe 4 x4 drive (Samsung 990 PRO data sheet: 7.45 and 6.9 GB/s).
_DESKTOP = NodeMemories(None, _dram(0.128, 89.6), _drives(2, 7.45, 6.9))


@dataclass(frozen=True, slots=True)
class Preset:
    """A system: its topology, and the sources of its figures."""

    spec: ShapeSpec
    note: str


def _nvswitch(
    name: str, gpus: int, bandwidth: float, card: Wire, host: NodeMemories, *, reduces: bool = False
) -> ShapeSpec:
    """``reduces``: the switch adds up and multicasts (NVLS, since the third NVSwitch generation)."""
    return ShapeSpec(
        *("switch", bandwidth, US / 2),
        name=name,
        gpus_per_node=gpus,
        inter_node=card,
        memories=host,
        in_switch_reduction=reduces,
    )


def _pcie(name: str, gpus: int, bandwidth: float, card: Wire, gpus_per_switch: int = 4) -> ShapeSpec:
    """Boards in a server: as many as share a switch at the root complex, more behind PCIe switches."""
    return ShapeSpec(
        *("pcie_tree", bandwidth, US), name=name, gpus_per_switch=gpus_per_switch, gpus_per_node=gpus, inter_node=card
    )


def _pairs(name: str, gpus: int, bandwidth: float, card: Wire, host: NodeMemories) -> ShapeSpec:
    """A node in which every two GPUs are linked."""
    return ShapeSpec("fully_connected", bandwidth, US, name=name, gpus_per_node=gpus, inter_node=card, memories=host)


_TABLE = (
    Preset(
        _nvswitch("dgx-a100", 8, 300 * GB, Wire(25 * GB, US), _DGX_A100),
        "8 x A100-SXM; NVSwitch 300 GB/s peak; 200 Gb/s InfiniBand a GPU",
    ),
    Preset(
        _nvswitch("dgx-h100", 8, 450 * GB, Wire(50 * GB, US), _DGX_H100, reduces=True),
        "8 x H100-SXM; NVSwitch 450 GB/s peak, reduces in the switch (NVLS); 400 Gb/s InfiniBand a GPU",
    ),
    Preset(
        _nvswitch("dgx-h200", 8, 450 * GB, Wire(50 * GB, US), _DGX_H100, reduces=True),
        "8 x H200-SXM; NVSwitch 450 GB/s peak, reduces in the switch (NVLS); 400 Gb/s InfiniBand a GPU",
    ),
    Preset(
        _nvswitch("dgx-b200", 8, 900 * GB, Wire(50 * GB, US), _DGX_B200, reduces=True),
        "8 x B200; NVSwitch 900 GB/s peak, NVLS; 400 Gb/s InfiniBand a GPU",
    ),
    Preset(
        _nvswitch("dgx-b300", 8, 900 * GB, Wire(100 * GB, US), _PCIE6, reduces=True),
        "8 x B300; NVSwitch 900 GB/s peak, NVLS; 800 Gb/s InfiniBand a GPU (ConnectX-8)",
    ),
    Preset(
        _nvswitch("dgx-h20", 8, 450 * GB, Wire(50 * GB, US), _PCIE5, reduces=True),
        "8 x H20; NVSwitch 450 GB/s peak, NVLS; 400 Gb/s InfiniBand a GPU is an assumption",
    ),
    Preset(
        _nvswitch("gb200-nvl4", 4, 900 * GB, Wire(50 * GB, US), _GRACE_PAIR, reduces=True),
        "a tray of a GB200 NVL72: 4 x GB200, NVSwitch 900 GB/s peak, NVLS; 400 Gb/s InfiniBand a GPU between trays (say "
        "gb200-nvl72 where trays share a rack)",
    ),
    Preset(
        _nvswitch("gb200-nvl72", 72, 900 * GB, Wire(50 * GB, US), _GRACE_PAIR, reduces=True),
        "a rack of 72 x GB200 in one NVLink domain; NVSwitch 900 GB/s peak, NVLS; 400 Gb/s InfiniBand a GPU between racks",
    ),
    Preset(
        _nvswitch("gb300-nvl4", 4, 900 * GB, Wire(100 * GB, US), _GRACE_PAIR, reduces=True),
        "a tray of a GB300 NVL72: 4 x GB300, NVSwitch 900 GB/s peak, NVLS; 800 Gb/s InfiniBand a GPU between trays",
    ),
    Preset(
        _nvswitch("gb300-nvl72", 72, 900 * GB, Wire(100 * GB, US), _GRACE_PAIR, reduces=True),
        "a rack of 72 x GB300 in one NVLink domain; NVSwitch 900 GB/s peak, NVLS; 800 Gb/s InfiniBand a GPU between racks",
    ),
    Preset(
        _nvswitch("gh200", 1, 450 * GB, Wire(50 * GB, US), _GRACE),
        "1 x GH200; NVLink-C2C to the host, 450 GB/s peak; 400 Gb/s InfiniBand",
    ),
    Preset(
        _nvswitch("gb10", 1, 25 * GB, Wire(25 * GB, US, network="roce"), _UNIFIED),
        "1 x GB10 (DGX Spark); 200 Gb/s RoCE; CPU and GPU share the memory, so that a copy has half of its 273 GB/s",
    ),
    Preset(
        _pairs("mi300x", 8, 64 * GB, Wire(50 * GB, US), _PCIE5),
        "8 x MI300X; Infinity Fabric of 64 GB/s peak between every two; 400 Gb/s InfiniBand a GPU is an assumption",
    ),
    Preset(
        _pairs("v100-nvl4", 4, 50 * GB, Wire(12.5 * GB, US), _PCIE3),
        "4 x V100-SXM2; two NVLinks of 25 GB/s peak between every two; 100 Gb/s a GPU is an assumption",
    ),
    Preset(
        _pairs("h100-nvl2", 2, 300 * GB, Wire(50 * GB, US, gpus_per_nic=2), _PCIE5),
        "2 x H100 PCIe or H100 NVL with NVLink bridges, 300 GB/s peak; 400 Gb/s InfiniBand for both is an assumption",
    ),
    Preset(
        ShapeSpec(
            "hybrid_cube_mesh",
            25 * GB,
            US,
            name="dgx-1-v100",
            inter_node=Wire(12.5 * GB, US, gpus_per_nic=2),
            memories=_DGX_1,
        ),
        "8 x V100-SXM2; NVLinks of 25 GB/s peak, half of the pairs have two; 4 x 100 Gb/s InfiniBand, each for two GPUs",
    ),
    Preset(
        _nvswitch("dgx-2", 16, 150 * GB, Wire(12.5 * GB, US, gpus_per_nic=2), _DGX_2),
        "16 x V100; NVSwitch 150 GB/s peak; 8 x 100 Gb/s InfiniBand, each for two GPUs",
    ),
    Preset(
        _pcie("a40-pcie", 2, 25 * GB, Wire(25 * GB, US, gpus_per_nic=2)),
        "2 x A40 at the root complex of a host; PCIe 4 x16, 25 GB/s achieved (32 peak); 200 Gb/s for both is an assumption",
    ),
    Preset(
        _pcie("a100-pcie", 8, 25 * GB, Wire(25 * GB, US, gpus_per_nic=2)),
        "8 x A100 PCIe without NVLink bridges; PCIe 4 x16, 25 GB/s achieved (32 peak); 200 Gb/s for two GPUs",
    ),
    Preset(
        _pcie("h100-pcie", 8, 50 * GB, Wire(50 * GB, US, gpus_per_nic=2)),
        "8 x H100 PCIe without NVLink bridges; PCIe 5 x16, 50 GB/s achieved (63 peak); 400 Gb/s for two GPUs",
    ),
    Preset(
        _pcie("l40s-pcie", 8, 25 * GB, Wire(25 * GB, US, gpus_per_nic=2), gpus_per_switch=2),
        "8 x L40S; PCIe 4 x16, 25 GB/s achieved (32 peak), by pairs behind switches as measured; 200 Gb/s for two GPUs",
    ),
    Preset(
        _pcie("l4-pcie", 8, 25 * GB, Wire(12.5 * GB, US, gpus_per_nic=8, network="sockets")),
        "8 x L4; PCIe 4 x16, 25 GB/s achieved (32 peak); 100 Gb/s for all of a node, TCP",
    ),
    Preset(
        _pcie("t4-pcie", 4, 12.5 * GB, Wire(6.25 * GB, US, gpus_per_nic=4, network="sockets")),
        "4 x T4; PCIe 3 x16, 12.5 GB/s achieved (16 peak); 50 Gb/s for all of a node, TCP",
    ),
    Preset(
        _pcie("a10g-pcie", 8, 25 * GB, Wire(12.5 * GB, US, gpus_per_nic=8, network="efa")),
        "8 x A10G; PCIe 4 x16, 25 GB/s achieved (32 peak); 100 Gb/s EFA for all of a node",
    ),
    Preset(
        _pcie("rtx-pro-6000-pcie", 8, 50 * GB, Wire(50 * GB, US, gpus_per_nic=2)),
        "8 x RTX PRO 6000 Blackwell; PCIe 5 x16, 50 GB/s achieved (63 peak); 400 Gb/s for two GPUs",
    ),
    Preset(
        _pcie("rtx-4090-pcie", 8, 25 * GB, Wire(12.5 * GB, US, gpus_per_nic=8)),
        "8 x RTX 4090; PCIe 4 x16, 25 GB/s achieved (32 peak); 100 Gb/s for all of a node",
    ),
    Preset(
        _pcie("rtx-5090-pcie", 8, 50 * GB, Wire(12.5 * GB, US, gpus_per_nic=8)),
        "8 x RTX 5090; PCIe 5 x16, 50 GB/s achieved (63 peak); 100 Gb/s for all of a node",
    ),
    Preset(
        replace(_pcie("workstation", 2, 12.5 * GB, Wire(1.25 * GB, US, 2, network="sockets")), memories=_DESKTOP),
        "a desktop with 2 boards of any kind, PCIe 4 x8 each, 12.5 GB/s achieved (16 peak); 128 GB of DDR5; 10 Gb/s Ethernet",
    ),
    Preset(
        ShapeSpec("torus", 50 * GB, US / 2, name="tpu-v4", dimensions=3, default_gpus=64, memories=_PCIE3),
        "3D torus, as even as the number of chips allows (64: 4 x 4 x 4); 6 links a chip of 50 GB/s peak; "
        "the host link is an assumption",
    ),
    Preset(
        ShapeSpec("mesh", 60.5 * GB, US / 2, name="wafer-84", shape=(12, 7), memories=_PCIE4),
        "12 x 7 mesh of A100-class GPUs on a wafer (TrioSim 7.1); the paper gives no link bandwidth: 60.5 GB/s is one of the "
        "8 channels of 484 GB/s in its photonic study, so say your own, as in wafer-84(bandwidth=100 GB/s)",
    ),
)

#: The presets by name.
PRESETS = {preset.spec.name or "": preset for preset in _TABLE}
