"""The bandwidth with which a GPU reaches the other GPUs of its node."""

from __future__ import annotations

from triosim.networks.topology.shapes import ShapeSpec

#: How many rings that share no link go through the first 2, 3 ... 8 GPUs of a DGX-1's hybrid cube mesh, each over one NVLink
#: in one direction; the fifth GPU has links to the first alone, through which its two rings come back.
_CUBE_MESH_RINGS = (1, 2, 4, 2, 2, 4, 6)


def node_bandwidth(spec: ShapeSpec, gpus: int | None = None) -> float:
    """Return the bytes per second that a GPU can send to the others of its node, or of a group of ``gpus`` in the node.

    Of links that differ by direction the slower counts. Behind a switch, a bus or a tree it is the GPU's own link. In a fully
    connected node a GPU has a link to each other GPU of the group; in the hybrid cube mesh of a DGX-1 as many as NCCL can lay
    rings over, in rings, meshes and tori two a dimension, or one to its only neighbour.
    """
    link = min(spec.bandwidth, spec.reverse_bandwidth or spec.bandwidth)
    if spec.topology == "fully_connected":
        return link * max((gpus or spec.gpus or 1) - 1, 1)
    if spec.topology == "hybrid_cube_mesh":
        return link * _CUBE_MESH_RINGS[(gpus or 8) - 2]
    if spec.topology == "ring":
        return link * max(_links_along(spec.gpus or 1), 1)
    if spec.topology in ("mesh", "torus"):
        return link * max(sum(map(_links_along, spec.shape or ())), 1)
    return link


def _links_along(side: int) -> int:
    """Return how many links a GPU inside of a line or ring of some GPUs has."""
    return min(side - 1, 2)
