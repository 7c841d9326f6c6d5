"""Launch files: the files that training frameworks read, written for a run of triosim, and read into the options of one.

``correspondence`` is what a framework's module is made of: a table of its keys and of the options that they stand for, which
writes and reads. A module for each framework has its table, and the form of its files.
"""
