"""How the embedded model was made: text, tokenizer, network, training and export.

    python -m ftagent.demo.training.vocabulary      trains the tokenizer (CPU, a minute)
    python -m ftagent.demo.training.train           trains the weights (one H200, under ten minutes)
    python -m ftagent.demo.training.export          writes the FP8 checkpoint

All text is made here or comes from the running Python's own documentation and sources (PSF licence).
"""
