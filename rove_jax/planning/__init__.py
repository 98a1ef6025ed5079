"""What a program would cost on hardware that is not at hand, from compiling it ahead of time for a named topology.

`topology.py` names the hardware, `hlo.py` reads optimised HLO text, `executable.py` says what a compiled train step is
made of and compares two of them.
"""
