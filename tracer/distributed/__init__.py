"""One rank of a distributed script, captured in a fake world: its process groups, collectives, DDP, FSDP and pipelines."""
