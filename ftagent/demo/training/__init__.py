"""How the embedded model was made: text, tokenizer, network, training and export.

    python -m ftagent.demo.training.vocabulary            trains the tokenizer, into `demo/model` (CPU)
    python -m ftagent.demo.training.train --out DIR       trains the weights, writes the FP8 checkpoint to DIR
    python -m ftagent.demo.training.train --out DIR --smoke --minutes 0.1       a few tiny steps, anywhere
    ftagent convert DIR NEW                               makes it FTW, as it ships

Words and facts: `ways`, `corpus`, `facts`, `values`, `files`, `commands`. Requests and calls: `tools`,
`tasks`. Conversations: `prefixes`, `dialogues`. Token ids and loss weights: `samples`. The model: `shape`,
`delta`, `network`, `optimizer`, `train`, `export`. What was run and what came of it: docs/lab-notes.md.

All text is made here or comes from the running Python's own documentation and sources (PSF licence).
"""
