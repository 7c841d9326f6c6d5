"""The photonic network: optical circuits that are set up on demand."""
