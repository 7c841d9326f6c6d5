"""The pipeline schedules that ship with triosim, one file each."""
