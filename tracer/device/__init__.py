"""A CUDA device that is not there: shapes, streams and memory without contents."""
