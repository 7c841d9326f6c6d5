"""How collective times are fitted to measurements, and judged."""
