"""The sharding of tensors: what the dimensions of an operator's tensors mean, and how a shard passes through the operator.

The words are DTensor's. A *dim* is a tensor's dimension, by position; an *axis* is a logical axis (the batch, the sequence,
heads, a parameter's features), of which a dim counts one or a product. *Mesh axes*, along which ranks stand, are the
extrapolators'. A *placement* says how a tensor is laid out over ranks: sharded in a dim, replicated, or a partial sum.

Which question which module answers, from the ground up:

- ``dimensions``: what does a dim count, and what comes of it when tensors are viewed, sliced, concatenated?
- ``placements``: in which dim, and in which part of it, is a tensor sharded?
- ``rules``: what does an operator do to dims? One module for each kind of operator, as in DTensor's ``_ops``;
  ``rules.local``: can it run on shards without communication?
- ``kernel_patterns``: the same for compiled kernels, which carry their own rule.
- ``dataflow``: who produces the value that an operator reads, and which operators differentiate it?
- ``step_dimensions``: which dims of all tensors of a step are the batch, the sequence, heads?
- ``propagation``: if an operator's inputs are sharded so, how are its output and its backward operators, and who reads these?
- ``layers``, ``parameters``: which operators have weights, and which tensors are parameters under another id?
- ``shards``: what is left of an operator, a parameter and the optimizer on one rank?
- ``reshape``: what are the shapes at another batch size?

Which layers are sharded, and what is communicated, is decided in ``triosim.extrapolators.tensor`` and ``.expert``.
"""
