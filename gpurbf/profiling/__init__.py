"""Where the time of a fit and a prediction goes, beside what the machine could do at most.

profiler.py  fit and predict with a recorder on (`gpurbf.runtime.stages`), and its result: a table,
             a frame, a sentence, a picture
ceilings.py  arithmetic and memory of this machine, measured once a process
machine.py   facts of this machine
"""

from gpurbf.profiling.profiler import Profile, Row, profile, profile_from

__all__ = ["Profile", "Row", "profile", "profile_from"]
