"""Raised where an operator of a plan cannot be called."""


class NotCallable(NotImplementedError):
    """An operator cannot be called with what a trace says of it, or on this machine."""
