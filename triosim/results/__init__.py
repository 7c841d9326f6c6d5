"""Results as values: times, metrics, memory and link loads of a simulated step."""
