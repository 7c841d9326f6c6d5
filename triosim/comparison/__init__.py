"""Several runs side by side: strategies, what-if, and pipeline schedules by themselves."""
