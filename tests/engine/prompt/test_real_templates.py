"""Templates as they ship with released checkpoints, where somebody has them: FTAGENT_TEMPLATES names a folder
of `*.jinja` files, for example `models/templates` of llama.cpp. Skipped where there is none.

Each file whose form is known has to be rendered whole and read back.
"""

from __future__ import annotations

import os
from itertools import takewhile
from pathlib import Path

import pytest

from ftagent.engine.prompt.form_registry import detect_form
from ftagent.engine.prompt.template import ChatTemplate
from tests.engine.prompt import speech, vocabularies
from tests.engine.prompt.replies import Setup, join
from tests.engine.prompt.speech import assistant, call, result, user
from tests.engine.prompt.test_family_prompts import READ
from tests.engine.prompt.test_family_templates import TALK

FOLDER = os.environ.get("FTAGENT_TEMPLATES", "")
SOURCES = {
    path.stem: path.read_text(encoding="utf-8")
    for path in sorted(Path(FOLDER).glob("*.jinja") if FOLDER else ())
    if detect_form(path.read_text(encoding="utf-8"), warn=False) != "plain"
    # A second template beside a default one; and one that no checkpoint has.
    and not path.stem.endswith("tool_use")
    and not path.stem.startswith("llama-cpp-")
}
SAID = ("SYSTEM words", "FIRST", "ANSWER one.", "SECOND", "LOOKING.", "NEEDLE", "HAYSTACK", "RESULT 1")

pytestmark = pytest.mark.skipif(not SOURCES, reason="FTAGENT_TEMPLATES names no folder of templates")


@pytest.mark.parametrize("name", SOURCES or ["none"])
def test_a_released_template_is_rendered_whole_and_read_back(name: str) -> None:
    tokenizer = vocabularies.family()
    chat = ChatTemplate(SOURCES[name], tokenizer)
    form = chat.form()
    if form == "plain":
        pytest.skip("it says where calls stand, but writes them in a form that is not known")
    prompt = chat.render(speech.conversation(TALK, speech.TOOLS))
    assert {words: prompt.text.count(words) for words in SAID} == dict.fromkeys(SAID, 1)
    kinds = {edge.kind for edge in prompt.boundaries}
    assert {"user", "tool_call", "tool_result", "assistant_end"} <= kinds
    made = {"q": "  a\n<b> & c", "limit": 3}
    talk = [user("Go"), assistant("", call("find", made, "a")), result("FOUND", "a")]
    asked, answered = (
        chat.render(speech.conversation(part, speech.TOOLS, False)).token_ids for part in (talk[:1], talk)
    )
    shared = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(asked, answered, strict=False))))
    pieces = tokenizer.split_added(tokenizer.decode(answered[shared:]).partition("FOUND")[0])
    reply = join(Setup(form, (READ,)).events(pieces, frozenset(tokenizer.added_tokens)))
    assert [(made_call.name, made_call.arguments) for made_call in reply.calls] == [("find", made)]
