"""Records what a step does on the fake device: operators, synchronisation, storages; and makes a trace of it."""
