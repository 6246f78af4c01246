"""Models from the Hugging Face hub: which of their files are needed, how they arrive, where they are kept.

Knows no terminal. `remote.py` alone imports `huggingface_hub`, and only once something is asked of the hub.
"""
