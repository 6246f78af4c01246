"""The engine: knows no HTTP, no terminal and no agent. Import `engine.api` for its face without torch."""

import os
import sys

# How long threads that wait for each other spin before they sleep. GNU's OpenMP spins for milliseconds by
# default, which takes the cores from everything else on the machine; without any spinning they oversleep the
# next of many short loops (docs/lab-notes.md has the figures). OpenMP reads it once, when torch loads it;
# `load_runner` then takes it out of the environment again, so that child processes do not inherit it.
SPIN_VARIABLE = "GOMP_SPINCOUNT"
SPIN_SET = "torch" not in sys.modules and not {SPIN_VARIABLE, "OMP_WAIT_POLICY"} & set(os.environ)
if SPIN_SET:
    os.environ[SPIN_VARIABLE] = "10000"
