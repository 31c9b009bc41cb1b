"""Where the time of a fit and a prediction goes, beside what the machine could do at most.

profiler.py  fit and predict with a recorder on (`gpurbf.runtime.stages`), and its result: a table,
             a frame, a sentence, a picture
scaling.py   the time that it would take with other numbers of threads
machine.py   what this machine is, and what its arithmetic and memory can reach
"""

from gpurbf.profiling.profiler import Profile, Row, profile, profile_data

__all__ = ["Profile", "Row", "profile", "profile_data"]
