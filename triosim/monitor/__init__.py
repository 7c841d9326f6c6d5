"""A page on the loopback address that shows a run while it goes on, and lets one pause or stop it."""
