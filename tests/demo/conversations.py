"""Conversations as training makes them, and the model's own tokenizer and template."""

from __future__ import annotations

import functools
import random

from ftagent import demo
from ftagent.conversation import Conversation
from ftagent.demo.training import dialogues
from ftagent.engine.prompt.template import ChatTemplate
from ftagent.engine.prompt.tokenizer import Tokenizer


@functools.cache
def tokenizer() -> Tokenizer:
    return Tokenizer.from_directory(demo.directory())


@functools.cache
def template() -> ChatTemplate:
    return ChatTemplate.from_directory(demo.directory(), tokenizer())


def conversation(seed: int) -> Conversation:
    """A chat or an agent's session, some of them without old thoughts."""
    rng = random.Random(f"tests/{seed}")
    if rng.random() < 0.3:
        made = dialogues.chat(rng, rng.randint(1, 4))
    else:
        made = dialogues.agent(rng, rng.choice((0, 300, 3000)), rng.randint(1, 4))
    return dialogues.forget_thoughts(made, rng.randint(1, 4)) if rng.random() < 0.15 else made
