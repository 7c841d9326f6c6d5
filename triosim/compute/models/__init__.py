"""The compute models that a user can name, one file each, and those that ``auto`` chooses from."""
