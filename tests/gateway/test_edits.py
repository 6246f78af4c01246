"""The kinds of edit that agents were recorded to make between two requests, each through its protocol: how
much of what two prompts have in common is reused. Tokens are bytes here, and replies are prescribed.

What cannot be reused is what stands behind the first token that differs: no state holds for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pytest

from ftagent.conversation import ToolSpec
from ftagent.engine.context.marks import NEAR
from tests.engine.prompt.test_parsers import xml_call
from tests.gateway.clients import PATHS, Asker, Protocol, asking
from tests.gateway.stage import eventually
from tests.support.saying_engine import reply_ids
from tests.support.toy_engine import Gate

SYSTEM = "You are a careful agent. " * 20
OTHER_SYSTEM = "You write titles and summaries. " * 12
TOOLS = [ToolSpec(name, "", {"type": "object", "properties": {"q": {"type": "string"}}}) for name in "adfz"]
EMPTY_THINKING = 16  # tokens around it and the reply's last one
BOTH: tuple[Protocol, ...] = ("messages", "chat")


class Reuse(NamedTuple):
    """Tokens of the newest prompt; of those, what an earlier prompt and reply began with, and what is reused.
    `longest_before`: the longest of those earlier ones.
    """

    prompt: int
    common: int
    cached: int
    longest_before: int

    @property
    def is_whole(self) -> bool:
        """All of the common part but what is too little for an anchor of its own."""
        return self.common - self.cached <= NEAR

    @property
    def is_extension(self) -> bool:
        """It goes on behind the prompt before, of which the templates leave the empty thinking out."""
        return self.is_whole and self.common >= self.longest_before - EMPTY_THINKING


class Agent:
    """Sends requests as a client would, and compares each prompt with all earlier ones."""

    def __init__(self, asker: Asker, template: str) -> None:
        self._asker = asker
        self._template = template
        self._known: list[list[int]] = []

    def ask(
        self,
        messages: Sequence[Any],
        *,
        protocol: Protocol = "messages",
        system: Any = SYSTEM,
        tools: Sequence[Any] = TOOLS,
        says: str = "Well.",
    ) -> Reuse:
        engine = self._asker.engine
        engine.say(says)
        script = list(engine.runner.script)
        fields: dict[str, Any] = {"thinking": {"type": "disabled"}, "system": system}
        if protocol == "chat":
            messages = [{"role": "system", "content": system}, *messages]
            fields = {"reasoning_effort": "none"}
        usage = self._asker.ask(protocol, False, messages=messages, tools=tools, **fields).usage
        prompt = engine.prompts[-1]
        common = max((_common(prompt, known) for known in self._known), default=0)
        longest = max(map(len, self._known), default=0)
        self._known.append([*prompt, *script])
        cached = usage.get("cache_read_input_tokens")
        if cached is None:
            cached = usage["prompt_tokens_details"]["cached_tokens"]
        return Reuse(len(prompt), min(common, len(prompt) - 1), cached, longest)

    def calls(self, name: str, q: str) -> str:
        """A reply that is one call, as the template's models write it."""
        if self._template == "qwen3_5_like":
            return xml_call(name, q=q)
        return f'<tool_call>\n{{"name": "{name}", "arguments": {{"q": "{q}"}}}}\n</tool_call>'

    @property
    def prompt(self) -> str:
        """The text of the newest prompt."""
        return self._asker.engine.prompt_text()

    def place_of(self, words: str) -> int:
        """How many tokens stand before `words` in the newest prompt."""
        before = self.prompt[: self.prompt.index(words)]
        return len(reply_ids(before, end=False))


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    pairs = enumerate(zip(first, second, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(first), len(second)))


@pytest.fixture(params=["qwen3_5_like", "qwen3_like"])
def agent(request: pytest.FixtureRequest) -> Iterator[Agent]:
    with asking(request.param) as asker:
        yield Agent(asker, request.param)


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": [text(block) if isinstance(block, str) else block for block in blocks]}


def assistant(*blocks: Any) -> dict[str, Any]:
    return {**user(*blocks), "role": "assistant"}


def call(id_: str, name: str = "f", **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id_, "name": name, "input": arguments}


def result(id_: str, *blocks: Any) -> dict[str, Any]:
    content = [text(block) if isinstance(block, str) else block for block in blocks]
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": id_, "content": content}]}


def words(name: str, count: int = 30) -> str:
    return " ".join(f"{name}{number}" for number in range(count))


def reminder(name: str, body: str) -> str:
    return f"<system-reminder>\n# {name}\n{body}\n</system-reminder>"


def git(status: str) -> str:
    recent = f"Recent commits:\n{words('commit')}"
    return f"<system-reminder>\nAs you answer, use:\n# gitStatus\n{status}\n{recent}\n</system-reminder>"


def place(order: Sequence[int] = range(4), date: str = "2026-12-01") -> dict[str, Any]:
    """The environment as Claude Code says it, its paragraphs behind the first in any order."""
    head = "# Environment\nYou have been invoked in the following environment: \n - Primary directory: /a"
    rest = [words("agents", 60), words("skills", 90), words("tools", 40), f"Today's date is {date}."]
    return {"role": "system", "content": "\n\n".join([head, *(rest[number] for number in order)])}


def test_a_moved_cache_marker_and_a_list_that_becomes_a_string(agent: Agent) -> None:
    marked = {"cache_control": {"type": "ephemeral"}}
    question, system = words("question"), [text(SYSTEM, **marked)]
    agent.ask([user(text(question, **marked))], system=system)
    later = [{"role": "user", "content": question}, assistant("Well."), user(text("More?", **marked))]
    found = agent.ask(later, system=SYSTEM)
    assert found.is_extension


@pytest.mark.parametrize("protocol", BOTH)
def test_ids_of_another_session(agent: Agent, protocol: Protocol) -> None:
    def messages(id_: str) -> list[Any]:
        if protocol == "messages":
            return [user("go"), assistant(call(id_, q="x")), result(id_, words("found"))]
        made = {"id": id_, "type": "function", "function": {"name": "f", "arguments": '{"q": "x"}'}}
        turn = {"role": "assistant", "content": None, "tool_calls": [made]}
        return [
            {"role": "user", "content": "go"},
            turn,
            {"role": "tool", "tool_call_id": id_, "content": words("found")},
        ]

    first = agent.ask(messages("toolu_01AbC"), protocol=protocol)
    found = agent.ask(messages("call_zzz"), protocol=protocol)
    assert found.prompt == first.prompt == found.common + 1
    assert found.is_whole


@pytest.mark.parametrize("more", ["", " cc_is_subagent=true;"])
def test_digits_in_a_billing_line(agent: Agent, more: str) -> None:
    def system(digits: str) -> list[Any]:
        line = f"x-anthropic-billing-header: cc_version=2.1.332.{digits}; cc_entrypoint=cli;"
        return [text(line + (more if digits == "b2c" else "")), text(SYSTEM)]

    agent.ask([user(words("one"))], system=system("a1f"))
    found = agent.ask([user(words("one")), assistant("Well."), user("two")], system=system("b2c"))
    assert found.is_extension


def test_tools_that_are_inserted_in_the_middle(agent: Agent) -> None:
    """Tool search: the definition comes where it is referred to, so the prompt is only extended."""
    deferred = [
        {"name": name, "description": words(name), "input_schema": {"type": "object"}, "defer_loading": True}
        for name in ("c_late", "e_late")
    ]
    plain = [{"name": tool.name, "input_schema": tool.parameters} for tool in TOOLS]
    history = [user(words("question"))]
    before = agent.ask(history, tools=plain, says=agent.calls("z", "late"))
    for number, new in enumerate(deferred):
        reference = {"type": "tool_reference", "tool_name": new["name"]}
        history = [*history, assistant(call(f"s{number}", "z", q="late")), result(f"s{number}", reference)]
        tools = [*plain[:2], *deferred[: number + 1], *plain[2:]]
        found = agent.ask(history, tools=tools, says=agent.calls("z", "late"))
        assert found.is_whole
        assert found.common >= before.prompt - EMPTY_THINKING
        before = found
        described = words(str(new["name"]))
        assert agent.prompt.count(described) == 1
        assert agent.place_of(described) > agent.place_of(words("question"))
    again = [*history, assistant(call("s9", "z", q="late")), result("s9", reference)]
    agent.ask(again, tools=tools)
    assert agent.prompt.count(words("e_late")) == 1, "a second reference is a short note"


@pytest.mark.parametrize("protocol", BOTH)
def test_tools_dropped_for_a_compaction_and_restored(agent: Agent, protocol: Protocol) -> None:
    history = [{"role": "user", "content": words("one")}]
    agent.ask(history, protocol=protocol)
    history += [{"role": "assistant", "content": "Well."}, {"role": "user", "content": words("two")}]
    agent.ask(history, protocol=protocol)
    compact = [*history, {"role": "assistant", "content": "Well."}, {"role": "user", "content": "Sum up."}]
    agent.ask(compact, protocol=protocol, tools=())
    more = [*history, {"role": "assistant", "content": "Well."}, {"role": "user", "content": "three"}]
    found = agent.ask(more, protocol=protocol)
    assert found.is_whole
    assert found.common >= found.prompt - 80, "nothing but the newest turn"


@pytest.mark.parametrize("protocol", BOTH)
def test_other_system_text_and_tools_before_the_same_messages(agent: Agent, protocol: Protocol) -> None:
    """The side request has nothing in common, and takes nothing from the main line."""
    history = [{"role": "user", "content": words("one")}]
    agent.ask(history, protocol=protocol)
    agent.ask(history, protocol=protocol, system=OTHER_SYSTEM, tools=TOOLS[:2])
    more = [*history, {"role": "assistant", "content": "Well."}, {"role": "user", "content": "two"}]
    assert agent.ask(more, protocol=protocol).is_whole
    again = agent.ask(more, protocol=protocol, system=OTHER_SYSTEM, tools=TOOLS[:2])
    assert again.is_whole
    assert again.common > len(OTHER_SYSTEM)


@pytest.mark.parametrize("protocol", BOTH)
def test_a_branch_that_is_thrown_away(agent: Agent, protocol: Protocol) -> None:
    """A suggestion, a compaction in line: the next turn forks before it."""
    history = [{"role": "user", "content": words("one")}]
    agent.ask(history, protocol=protocol)
    history += [{"role": "assistant", "content": "Well."}]
    for turn in range(3):
        branch = {"role": "user", "content": f"Suggest {words('s', 40)}"}
        assert agent.ask([*history, branch], protocol=protocol, says="Perhaps.").is_whole
        history += [{"role": "user", "content": words(f"turn{turn}")}]
        assert agent.ask(history, protocol=protocol).is_whole
        history += [{"role": "assistant", "content": "Well."}]


def test_git_status_late_in_the_system_text(agent: Agent) -> None:
    """A state cannot be had where nobody knew that prompts part there; from the third session on it is."""

    def system(status: str) -> str:
        return f"{SYSTEM}\n# gitStatus\n{status}\nRecent commits: {words('commit', 10)}"

    agent.ask([user("one")], system=system("clean"))
    second = agent.ask([user("one")], system=system("M a.txt"))
    third = agent.ask([user("one")], system=system("?? b.txt"))
    assert second.common > len(SYSTEM)
    assert third.common > len(SYSTEM)
    assert third.is_whole


def test_git_status_in_a_reminder_of_the_first_message(agent: Agent) -> None:
    """Claude Code 2.1.332, one task after another in one directory: memory, attribution and environment are
    the same, and the state of the repository is said behind them.
    """

    def opening(status: str, task: str) -> list[Any]:
        memory, attribution = reminder("Memory", words("memory", 80)), reminder("Attribution", words("by"))
        return [user(git(status), memory, attribution, task), place()]

    agent.ask(opening("(clean)", "Create a file."))
    second = agent.ask(opening("?? greeting.txt", "Run a command."))
    assert agent.place_of("<system-reminder>\nAs you answer") - second.cached <= NEAR
    assert second.cached >= 0.9 * second.common
    prompt = agent.prompt
    order = [prompt.index(word) for word in ("agents59", "memory79", "by29", "?? greeting", "Run a command")]
    assert order == sorted(order)
    for word in ("agents59", "memory79", "by29", "?? greeting.txt", "Run a command."):
        assert prompt.count(word) == 1


@pytest.mark.parametrize("protocol", BOTH)
def test_a_reminder_that_leaves_a_message_and_comes_back_at_the_end(agent: Agent, protocol: Protocol) -> None:
    dated = reminder("Date", "It is Monday.")
    first, second = words("first", 60), words("second", 60)
    agent.ask([{"role": "user", "content": first}], protocol=protocol)
    history = [{"role": "user", "content": first}, {"role": "assistant", "content": "Well."}]
    agent.ask([*history, {"role": "user", "content": f"{second}\n{dated}"}], protocol=protocol)
    history += [{"role": "user", "content": second}, {"role": "assistant", "content": "Well."}]
    found = agent.ask([*history, {"role": "user", "content": f"third\n{dated}"}], protocol=protocol)
    # The prompts part inside of the second message: the last anchor is where it begins.
    assert found.common - found.cached <= len(second) + NEAR
    again = agent.ask([*history, {"role": "user", "content": "another third"}], protocol=protocol)
    assert again.is_whole


def test_paragraphs_of_the_environment_in_another_order(agent: Agent) -> None:
    """A compaction: summary, the environment behind the newest message with its paragraphs rotated."""
    opening = [user(reminder("Memory", words("memory")), "Do it."), place()]
    agent.ask(opening)
    agent.ask([*opening, assistant("Well."), user(words("more"))])
    summary = user(f"In short: {words('summary')}")
    found = agent.ask([summary, assistant("Well."), user("Go on."), place((2, 0, 3, 1))])
    prompt = agent.prompt
    assert found.is_whole
    assert found.cached > agent.place_of("Today's date is"), "system text, tools and the whole environment"
    for name in ("agents0 ", "skills0 ", "tools0 ", "Today's date", "summary0 "):
        assert prompt.count(name) == 1


def test_live_files_behind_a_history_that_grows(agent: Agent) -> None:
    """aider: each turn goes in front of the files, whose text moves down."""
    files = [user(f"These are the files: {words('file', 120)}"), assistant("Ok.")]
    history: list[Any] = []
    for turn in range(4):
        question = user(words(f"question{turn}", 20))
        found = agent.ask([*history, *files, question], tools=())
        if turn:
            assert found.common - found.cached <= 40, "what the first new turn and the files begin with alike"
        history += [question, assistant("Well.")]


@pytest.mark.parametrize("protocol", BOTH)
def test_old_results_that_give_way_to_a_marker(agent: Agent, protocol: Protocol) -> None:
    def turn(number: int, found: str) -> list[Any]:
        if protocol == "messages":
            return [assistant(call(f"id{number}", q="x")), result(f"id{number}", found)]
        made = {"id": f"id{number}", "type": "function", "function": {"name": "f", "arguments": '{"q":"x"}'}}
        return [
            {"role": "assistant", "content": None, "tool_calls": [made]},
            {"role": "tool", "tool_call_id": f"id{number}", "content": found},
        ]

    results = [words(f"r{number}_", 40) for number in range(5)]
    for count in range(6):
        history = [message for number in range(count) for message in turn(number, results[number])]
        agent.ask(
            [{"role": "user", "content": "go"}, *history], protocol=protocol, says=agent.calls("f", "x")
        )
    results[2] = "[cleared]"
    history = [message for number in range(5) for message in turn(number, results[number])]
    found = agent.ask([{"role": "user", "content": "go"}, *history], protocol=protocol)
    assert found.is_whole, "up to the place where the first of them was cleared"


@pytest.mark.parametrize("protocol", BOTH)
def test_a_turn_that_is_taken_back(agent: Agent, protocol: Protocol) -> None:
    """Esc before anything was said: history forgets the message, and another one comes."""
    history = [{"role": "user", "content": words("one")}]
    agent.ask(history, protocol=protocol)
    history += [{"role": "assistant", "content": "Well."}]
    agent.ask([*history, {"role": "user", "content": words("regretted")}], protocol=protocol, says="Hm")
    found = agent.ask([*history, {"role": "user", "content": words("instead")}], protocol=protocol)
    assert found.is_whole
    same = agent.ask([*history, {"role": "user", "content": words("regretted")}], protocol=protocol)
    assert same.prompt - same.cached <= NEAR + 1, "the same words once more cost nothing"


@pytest.mark.parametrize("protocol", BOTH)
def test_a_partial_answer_that_is_dropped(agent: Agent, protocol: Protocol) -> None:
    """Two messages of the user in a row."""
    history = [{"role": "user", "content": words("one")}]
    agent.ask(history, protocol=protocol, says="Well, this is")
    found = agent.ask([*history, {"role": "user", "content": words("two")}], protocol=protocol)
    assert found.is_whole


@pytest.mark.parametrize("protocol", BOTH)
@pytest.mark.parametrize("steps", [1, 3])
def test_a_retry_of_a_request_whose_socket_was_closed(agent: Agent, protocol: Protocol, steps: int) -> None:
    """The client gave up inside the prompt and asks the same again: no token of it is computed twice."""
    asker, runner = agent._asker, agent._asker.engine.runner
    runner.before_step = gate = Gate(steps)
    messages = [{"role": "user", "content": words("long", 900)}]
    off: dict[str, Any] = {"thinking": {"type": "disabled"}}
    if protocol == "chat":
        off = {"reasoning_effort": "none"}
    body = {"model": "m", "max_tokens": 9000, "messages": messages, "stream": True, **off}
    with asker._client.stream("POST", PATHS[protocol], json=body):
        assert eventually(lambda: len(runner.steps) == steps)
    gate.open()
    assert eventually(lambda: asker.engine.stats().running == 0)
    given = sum(len(chunk.tokens) for step in runner.steps for chunk in step)
    asker.engine.say("Well.")
    asker.ask(protocol, False, messages=messages, tools=(), **off)
    prompt = len(asker.engine.prompts[-1])
    computed = sum(len(chunk.tokens) for step in runner.steps for chunk in step)
    assert 0 < given < prompt
    assert computed == prompt + len("Well.")
