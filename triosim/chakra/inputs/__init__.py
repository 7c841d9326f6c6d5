"""ASTRA-sim's files beside the graphs: network, system, remote memory and communicator groups."""
