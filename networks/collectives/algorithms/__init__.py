"""The collective algorithms that a user can name: one file each."""
