"""triosim's own files: ``trace.json`` and ``streams.json.gz``."""
