"""Scripts that run while the simulated clock does: ``triosim run``.

Each running rank is a process that runs the script on a fake GPU (``script_process``). What it launches goes to the process of
the command, whose engine simulates all ranks (``live_streams``); a rank that asks for the time waits until the engine has come
to it. So there is one clock, nothing is rolled back, and the same script gives the same times.
"""
