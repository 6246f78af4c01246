"""ftagent: frontier mixture-of-experts models on a personal machine, for the coding agents people use."""

__version__ = "0.1.0"
