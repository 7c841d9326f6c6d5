"""Results as pictures: Gantt charts, heat maps of links, memory over a step, schedules and topologies."""
