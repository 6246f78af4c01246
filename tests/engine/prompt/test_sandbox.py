"""Templates are strangers' programs: refused or bounded when they misbehave, and given what they may use."""

from __future__ import annotations

from typing import Any

import pytest
from transformers.utils import chat_template_utils

from ftagent.engine.prompt.template import ChatTemplate
from ftagent.errors import BadRequest, LoadFailed
from tests.engine.prompt import speech, vocabularies
from tests.engine.prompt.speech import user

oracle: Any = chat_template_utils.render_jinja_template  # -> (texts, masks)

MALICIOUS = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.append(1) }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ ('%s' | attr('__class__')) }}{{ ''['__class__']['__mro__'] }}",
    "{% set n = namespace(__class__=1) %}",
    "{% set n = namespace() %}{% set n.__x = 1 %}",
    "{{ 'x' * 10000000000 }}",
    "{{ 9 ** (9 ** 9) }}",
    "{% for i in range(1000000000) %}{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{% include '/etc/passwd' %}",
    "{{ lipsum(1000000) }}",
    "{% set x = namespace(v='x' * 1000) %}{% for i in range(99999) %}{{ x.v * 1000 }}{% endfor %}",
]


@pytest.mark.parametrize("source", MALICIOUS)
def test_malicious_template_is_refused(source: str) -> None:
    with pytest.raises(LoadFailed) as caught:
        ChatTemplate(source + "{{ messages[0].content }}", vocabularies.small())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception.__globals__ }}",
        "{{ messages.__class__ }}",
        "{{ messages | attr('__class__') }}",
        "{{ '{0.__class__}'.format(messages) }}",
        "{{ self._TemplateReference__context }}",
        "{{ loop }}{{ config }}",
    ],
)
def test_internals_are_not_shown(source: str) -> None:
    try:
        template = ChatTemplate(source + "{{ messages[0].content }}", vocabularies.small())
    except LoadFailed:
        return
    assert template.render(speech.conversation([user("words")])).text == "words"


def test_template_that_turns_malicious_later() -> None:
    trigger = (
        "{% if messages | length > 7 %}{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}"
    )
    source = trigger + "{% endfor %}{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}"
    template = ChatTemplate(source, vocabularies.small())
    assert template.render(speech.conversation([user("fine")])).text == "fine"
    with pytest.raises(BadRequest, match="loop passes"):
        template.render(speech.conversation([user("u")] * 8))


def test_generation_tag_and_loop_controls_and_dates() -> None:
    source = (
        "{% for m in messages %}{% if m.content == 'c' %}{% break %}{% endif %}"
        "{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}{{ strftime_now('%Y') | length }}"
    )
    messages = [user("a"), user("b"), user("c")]
    texts, _ = oracle(conversations=[messages], chat_template=source)
    rendered = ChatTemplate(source, vocabularies.small()).render(speech.conversation(messages))
    assert rendered.text == texts[0] == "ab4"
