"""How compute models are fitted to tables of measured operators, and judged."""
