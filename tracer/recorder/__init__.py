"""What a captured step did: operators, streams, storages."""
