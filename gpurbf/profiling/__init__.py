"""Where the time of a fit and a prediction goes, compared with the peak rates of the machine.

profiler.py  fits and predicts with a recorder on (`gpurbf.runtime.stages`); the result as a table,
             a data frame, a sentence, a picture
scaling.py   models the time with other numbers of threads
machine.py   describes this machine, and measures the peak rates of its arithmetic and memory
"""

from gpurbf.profiling.profiler import Profile, Row, profile, profile_data

__all__ = ["Profile", "Row", "profile", "profile_data"]
