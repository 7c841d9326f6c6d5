"""A fuzzer: every kind of input is changed at random, and nothing may end in more than one line of error."""
