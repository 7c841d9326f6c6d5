"""Folding: ranks that run the same tasks, and micro-batches that do, are simulated once, with exactly the same results.

Each question has one mechanism:

- Which ranks run the same tasks? The plan's symmetry (:mod:`triosim.extrapolators.core.symmetry`): one represents each class.
- What do the representatives send? A dry run of their task streams (:mod:`triosim.folding.dry_run`).
- Which flows get the same rate because a rotation of the ranks maps the topology to itself? Classes of links
  (:mod:`triosim.folding.link_folding`, :mod:`triosim.networks.topology.link_symmetry`): one flow of each class is simulated.
- Along the other axes, which copies of a flow have to be simulated because they share links with the representatives' flows?
  :mod:`triosim.folding.copy_selection`; the rest goes over links of its own at the same speed. Copies between GPUs and
  memories are selected along all axes, as links of memories have no classes.
- Which collectives always take as long as on an idle network? Those whose links one communicator has for itself
  (:mod:`triosim.folding.uncontended`): each size is simulated once.
- Which micro-batches do the same? A schedule repeats itself, and in the steady state so does the run
  (:mod:`triosim.folding.steady_state`): one period stands for those that are left out.

Two related mechanisms live elsewhere, because they also serve runs in which every rank is simulated: equal layers are
sharded and priced once (:mod:`triosim.extrapolators.deduplication`), and a collective alone in a regular network is
simulated from one of its ranks (:mod:`triosim.networks.flow.symmetric_collectives`).

Wherever folding would not be exact it raises ``AsymmetryError``: before the run, where the links of a copy that is left out
do not correspond to those of the simulated flows, or during the run, where a copy does not end with its original.
"""
