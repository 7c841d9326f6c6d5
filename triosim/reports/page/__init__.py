"""A page for people who were not at the terminal: one HTML file that opens without a network."""
