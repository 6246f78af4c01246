"""The engine: knows no HTTP, no terminal and no agent. Import `engine.api` for its face without torch."""

import os
import sys

# Threads that wait for each other by spinning take the cores from everything else on the machine: beside two
# busy processes a prefill took four times as long. OpenMP reads this once, when torch loads it; `load_runner`
# then takes it out of the environment again, so that child processes do not inherit it.
WAIT_POLICY_SET = "torch" not in sys.modules and "OMP_WAIT_POLICY" not in os.environ
if WAIT_POLICY_SET:
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
