"""Pipeline parallelism, its stages and its schedules."""
