"""Which bytes are alive when during a step."""
