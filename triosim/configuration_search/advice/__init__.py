"""Advice about a job: which changes of its launch file gain most, one option at a time and then two."""
