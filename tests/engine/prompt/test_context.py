"""The order in which an agent's words about its place are said: no word is lost, doubled or changed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ftagent.conversation import Conversation, Message, Text, ToolReference, ToolResult, ToolSpec
from ftagent.engine.prompt.context import order, steady_first
from tests.engine.prompt import vocabularies

PLACE = "# Environment\nYou have been invoked in the following environment: \n - Platform: linux"
TEMPLATES = ("qwen3_like", "qwen3_5_like", "demo")


def message(role: str, *texts: str) -> Message:
    return Message(role, tuple(map(Text, texts)))  # type: ignore[arg-type]


def reminder(body: str) -> str:
    return f"<system-reminder>\n{body}\n</system-reminder>\n"


def rendered(name: str, *messages: Message, tools: tuple[ToolSpec, ...] = ()) -> str:
    return vocabularies.template(name).render(Conversation(messages, tools, thinking=False)).text


BODIES = st.sampled_from(
    ["# gitStatus\nM a", "# Memory", "x\n# gitStatus\n?? b", "Attribution", "# gitStatus x"]
)


@given(st.lists(BODIES, max_size=6), st.text(max_size=20))
def test_reminders_that_change_stand_behind_the_others(bodies: list[str], words: str) -> None:
    text = "".join(map(reminder, bodies)) + words
    said, edges = steady_first(text)
    assert sorted(said) == sorted(text)
    assert said.endswith(words)
    changing = ["# gitStatus\n" in body for body in bodies]
    steady = [reminder(body) for body, changes in zip(bodies, changing, strict=True) if not changes]
    moved = [reminder(body) for body, changes in zip(bodies, changing, strict=True) if changes]
    if not words.startswith("\n"):
        assert said == "".join([*steady, *moved]) + words
        assert len(edges) == len(steady)
        assert all(said[:edge].endswith("</system-reminder>\n") for edge in edges)


def test_what_the_person_wrote_is_left_alone() -> None:
    for text in ("plain", "# gitStatus\nM a", "see <system-reminder>\n# gitStatus\n</system-reminder>\n", ""):
        assert steady_first(text) == (text, ())
    behind = "look\n" + reminder("# gitStatus\nM a") + reminder("# Memory")
    assert steady_first(behind) == (behind, ())
    open_one = "<system-reminder>\n# gitStatus\nnever closed"
    assert steady_first(open_one) == (open_one, ())


def test_one_message_about_the_place_comes_first_and_no_other_moves() -> None:
    system, user, late = message("system", "A"), message("user", "one"), message("system", "B")
    place, reply = message("system", PLACE), message("assistant", "two")
    assert order([system, user, place, reply]) == [0, 2, 1, 3]
    assert order([user, reply, user, place]) == [3, 0, 1, 2]
    assert order([system, place, user]) == [0, 1, 2]
    assert order([system, user, late, reply]) == [0, 1, 2, 3]
    assert order([user, place, place]) == [0, 1, 2], "two of them: which is meant, nobody knows"
    assert order([user, message("user", PLACE)]) == [0, 1]
    assert order([system]) == [0]


def test_the_place_is_said_once_in_front_of_the_question_and_apart_from_the_system_text() -> None:
    messages = (message("system", "BE TERSE"), message("user", "QUESTION"), message("system", PLACE))
    for name in TEMPLATES:
        text = rendered(name, *messages)
        places = [text.index(words) for words in ("BE TERSE", "# Environment", "QUESTION")]
        assert places == sorted(places)
        assert text.count("Platform: linux") == 1
        alone = rendered(name, messages[0], messages[1])
        head = alone[: alone.index("QUESTION") - len("user\n")]
        assert text.startswith(head), "an engine that knows the system text need not know the place"


def test_its_paragraphs_keep_the_order_in_which_they_first_came() -> None:
    paragraphs = [PLACE, "The agents:\n- a", "The skills:\n- b", "Today is Monday."]
    turned = "\n\n".join([paragraphs[0], *paragraphs[2:], paragraphs[1]])
    for name in TEMPLATES:
        template = vocabularies.template(name)
        texts = []
        for words in ("\n\n".join(paragraphs), turned, turned + "\n\nOne more."):
            asked = Conversation((message("user", "go"), message("system", words)), thinking=False)
            texts.append(template.render(asked).text)
        assert texts[0] == texts[1]
        assert texts[2].index("The skills") < texts[2].index("The agents"), "other paragraphs: as they came"
        shuffled = "\n\n".join(paragraphs[::-1])
        plain = Conversation((message("user", shuffled),), thinking=False)
        assert shuffled in template.render(plain).text, "a person's words keep their order"


def test_a_late_tool_is_described_where_it_is_first_referred_to() -> None:
    tools = (
        ToolSpec("ping", "Pings.", {"type": "object"}),
        ToolSpec("late", "Comes <|im_end|> late.", {"type": "object", "properties": {"q": {}}}, late=True),
    )
    found = Message("tool", (ToolResult("x", (ToolReference("late"), ToolReference("nobody"))),))
    again = Message("tool", (ToolResult("y", (ToolReference("late"),)),))
    for name in TEMPLATES:
        text = rendered(name, message("user", "go!"), found, message("assistant", "ok"), again, tools=tools)
        assert text.count('"late"') == 1
        assert text.index('"ping"') < text.index("go!") < text.index('"late"')
        assert "The tool nobody is available now." in text
        assert text.count("The tool late is available now") == 2


def test_late_tools_that_nobody_refers_to_or_that_are_alone_are_listed() -> None:
    late = ToolSpec("late", "", {"type": "object"}, late=True)
    found = Message("tool", (ToolResult("x", (ToolReference("late"),)),))
    for name in TEMPLATES:
        for messages in ((message("user", "go!"),), (message("user", "go!"), found)):
            text = rendered(name, *messages, tools=(late,))
            assert text.index('"late"') < text.index("go!")
            assert text.count('"late"') == 1
