"""Benchmarks of sse_limits against bare servers, in one run on one machine. `python -m bench --help`.

Each module measures one thing and says in its docstring what, against what, and how. Figures are CPU times, memory and
delays of real server processes; the client's speed does not matter. Differences under 20 % mean nothing.
"""
