"""Profiler traces; one door: `spyreprof.trace.reader.read(path)`."""
