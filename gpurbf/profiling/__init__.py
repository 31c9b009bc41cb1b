"""Where the time of a fit and a prediction goes, beside what the machine could do at most.

run.py       fit and predict with a recorder on          ─► entries of `gpurbf.runtime.stages`
ceilings.py  arithmetic and memory of this machine, measured once a process
result.py    both put together: a table, a frame, a sentence
plot.py      and a picture
"""

from gpurbf.profiling.profiler import Profile, Row, profile, profile_from

__all__ = ["Profile", "Row", "profile", "profile_from"]
