"""Synthetic checkpoints whose routing and text are scripted; `walk_checkpoint.py` is the command."""
