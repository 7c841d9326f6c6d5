"""Views of results: tables on a terminal, files, pictures and pages; each is a ``Report``, found by its name."""

from triosim.results.report import Report

__all__ = ["Report"]
