"""Is the simulation true? Step times, schedules and latencies against a real engine."""
