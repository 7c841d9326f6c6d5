"""Tensor, sequence and context parallelism: parallelisms that shard the operators of a layer.

``tp`` shards features: ``pairs`` finds Megatron's pairs of layers, ``layer_sharding`` decides how layers are sharded, and
``layer_collectives`` and ``insertions`` put the collectives around it. ``sequence_parallel`` shards the sequence between the
pairs, ``overlap`` hides its collectives behind products. ``cp`` shards the sequence everywhere, attention included.
"""
