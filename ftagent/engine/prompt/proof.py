"""Whether a form of replies reads the calls that a template writes: the proof that it is the right one."""

from __future__ import annotations

from itertools import takewhile

from ftagent.engine.prompt.boundaries import common_prefix
from ftagent.engine.prompt.form_registry import ReplyForm
from ftagent.engine.prompt.parsers import ReplyParser
from ftagent.engine.prompt.tokenizer import Tokenizer
from ftagent.engine.prompt.writer import TRIAL_TOOL, Writer


def reads_back(form: ReplyForm, writer: Writer, tokenizer: Tokenizer) -> bool:
    """True also where the template writes no call at all, so that there is nothing to read."""
    asked, answered = (tokenizer.split_added(text) for text in writer.trial_call())
    if not any(TRIAL_TOOL.name in text for text, _ in answered):
        return True
    shared = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(asked, answered, strict=False))))
    if shared == len(answered):
        return True
    text, added = answered[shared]
    if not added and shared < len(asked):
        text = text[common_prefix(text, asked[shared][0]) :]
    parser = ReplyParser(form, [TRIAL_TOOL], False, frozenset(tokenizer.added_tokens))
    for piece, marker in [(text, added), *answered[shared + 1 :]]:
        parser.push(piece, marker)
    parser.finish(cut=False)
    return parser.calls > 0
