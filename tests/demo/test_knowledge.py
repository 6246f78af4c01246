"""The shipped model at work: questions and tasks in words that training does not hold.

Expected words were written before the model was asked.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import FineGrainedFP8Config, Qwen3_5MoeForCausalLM

from ftagent.conversation import Conversation, Message, Text, ToolSpec
from ftagent.demo.training import facts
from ftagent.engine.api import GenerateRequest, SamplingParams
from ftagent.engine.engine import LocalEngine, start_engine
from ftagent.engine.options import EngineOptions
from ftagent.events import Event, ToolCallDelta, ToolCallStart
from tests.demo.conversations import template, tokenizer
from tests.support.embedded import as_safetensors
from tests.support.toy_engine import collect, content, last

pytestmark = pytest.mark.slow

# A question, and a word that a right answer holds.
QUESTIONS = (
    ("Which command do I type to open a chat with the model?", "ftagent chat"),
    ("How can I launch Claude Code through ftagent?", "ftagent run claude-code"),
    ("Which command starts the HTTP server?", "ftagent serve"),
    ("How can I check that my machine is ready for ftagent?", "ftagent doctor"),
    ("How do I measure how fast the engine is?", "ftagent bench"),
    ("How can I load a different model?", "--model"),
    ("Could you explain to me what a mixture of experts is?", "router"),
    ("Which key interrupts a reply?", "Esc"),
    ("What is the purpose of the KV cache?", "keys and values"),
    ("Is a GPU required to run ftagent?", "CPU"),
    ("Which licence does ftagent have?", "Apache-2.0"),
    ("Can you tell me what q* stands for?", "PCIe"),
)


def _tool(name: str, description: str, *parameters: str) -> ToolSpec:
    properties = {key: {"type": "string"} for key in parameters}
    return ToolSpec(
        name, description, {"type": "object", "properties": properties, "required": [*parameters]}
    )


TOOLS = (
    _tool("Bash", "Executes a shell command and returns its output.", "command"),
    _tool("Read", "Reads a file from the local filesystem.", "file_path"),
    _tool("Write", "Writes a file to the local filesystem.", "file_path", "content"),
)
TASKS = (
    (
        "Make a file called plums.txt that holds the words 'ripe on tuesday'.",
        "Write",
        {"file_path": "plums.txt", "content": "ripe on tuesday"},
    ),
    (
        'I would like a new file harbour.md with the text "three boats came in".',
        "Write",
        {"file_path": "harbour.md", "content": "three boats came in"},
    ),
    (
        "Please store the sentence 'Keep the lamp lit.' in lamp.txt, then stop.",
        "Write",
        {"file_path": "lamp.txt", "content": "Keep the lamp lit."},
    ),
    ("Run the shell command `echo lantern-42` for me.", "Bash", {"command": "echo lantern-42"}),
    ("Could you run `ls -lh` and say what comes out?", "Bash", {"command": "ls -lh"}),
    ("Execute `cat words.txt | wc -l` and show me the result.", "Bash", {"command": "cat words.txt | wc -l"}),
    ("Look into ports.ini and tell me the value of proxy_port.", "Read", {"file_path": "ports.ini"}),
    ("What does the file harvest.md say?", "Read", {"file_path": "harvest.md"}),
)


@pytest.fixture(scope="module")
def engine() -> Iterator[LocalEngine]:
    engine = start_engine(EngineOptions(model="demo", context=4096))
    yield engine
    engine.close()


def ask(engine: LocalEngine, text: str, tools: tuple[ToolSpec, ...] = ()) -> list[Event]:
    conversation = Conversation((Message("user", (Text(text),)),), tools)
    request = GenerateRequest(conversation, SamplingParams(temperature=0, max_tokens=200))
    return asyncio.run(collect(engine.generate(request)))


def test_the_wordings_are_new() -> None:
    topics: tuple[facts.Topic, ...] = ("what", "use", "ideas", "small talk")
    known = {question for topic in topics for fact in facts.about(topic) for question in fact.questions}
    assert not known & {question for question, _ in QUESTIONS}


def test_most_questions_about_ftagent_get_the_right_answer(engine: LocalEngine) -> None:
    """A floor for the shipped weights, which reach nine of twelve; ten is the aim of the next training."""
    answers = {question: content(ask(engine, question)) for question, _ in QUESTIONS}
    wrong = {question: answers[question] for question, word in QUESTIONS if word not in answers[question]}
    assert len(QUESTIONS) - len(wrong) >= 9, wrong


def test_most_tasks_give_the_right_call(engine: LocalEngine) -> None:
    """A floor for the shipped weights, which reach six of eight: "lamp.txt" and the pipe come out wrong."""
    wrong = {}
    for task, name, arguments in TASKS:
        events = ask(engine, task, TOOLS)
        names = [event.name for event in events if isinstance(event, ToolCallStart)]
        pieces = [event.arguments for event in events if isinstance(event, ToolCallDelta)]
        if names != [name] or json.loads("".join(pieces)) != arguments:
            wrong[task] = names, pieces
    assert len(TASKS) - len(wrong) >= 6, wrong


def test_the_engine_writes_what_transformers_writes(engine: LocalEngine, tmp_path: Path) -> None:
    """Greedy replies of the shipped weights, token by token."""
    theirs: Any = Qwen3_5MoeForCausalLM.from_pretrained(
        as_safetensors(tmp_path / "model"),
        dtype=torch.float32,
        quantization_config=FineGrainedFP8Config(dequantize=True),
    )
    end = tokenizer().added_tokens["<|im_end|>"]
    asked = [(question, ()) for question, _ in QUESTIONS[:3]] + [(task[0], TOOLS) for task in TASKS[:3]]
    for text, tools in asked:
        prompt = template().render(Conversation((Message("user", (Text(text),)),), tools)).token_ids
        with torch.no_grad():
            whole = theirs.generate(
                torch.tensor([prompt]), max_new_tokens=200, do_sample=False, eos_token_id=end
            )
        assert whole[0, len(prompt) :].tolist() == [*last(ask(engine, text, tools)).token_ids]
