"""The engine: ranks, streams, compute units and the rendezvous of collectives on a SimPy clock."""
