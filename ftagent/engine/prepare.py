"""From a request to a task: checks, prompt, parser, grammar, sampler.

Runs on threads that may wait, never on the worker; any number of them at once. Knows no scheduler and no
device.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from ftagent.conversation import Conversation
from ftagent.engine.api import GenerateRequest, ModelInfo, SamplingParams
from ftagent.engine.context.divergence import PromptWatch
from ftagent.engine.context.marks import choose_marks, lasting_marks, stable_head
from ftagent.engine.job import Job
from ftagent.engine.prompt.form_registry import ReplyForm, form_table
from ftagent.engine.prompt.grammar import constraint_for
from ftagent.engine.prompt.parsers import ReplyParser
from ftagent.engine.prompt.template import ChatTemplate, RenderedPrompt
from ftagent.engine.prompt.tokenizer import Detokenizer, Tokenizer
from ftagent.engine.reply import Parses, RawText, ReplyStream
from ftagent.engine.sampling import Constraint, Sampler, SamplingDefaults, check_params
from ftagent.engine.task import Outbox, Task
from ftagent.errors import BadRequest, PromptTooLong
from ftagent.events import Divergence

log = logging.getLogger(__name__)


class _Prompt(NamedTuple):
    token_ids: Sequence[int]
    parser: Parses
    rendered: RenderedPrompt | None = None  # None for raw prompts
    constraint: Constraint | None = None


class Preparer:
    """Prepares the requests of one model. `limit` is the most tokens that prompt and reply may have."""

    def __init__(
        self,
        info: ModelInfo,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        defaults: SamplingDefaults,
        *,
        form: ReplyForm,
        constrain: Literal["auto", "required"],
        seed: int,
    ) -> None:
        self._info = info
        self._tokenizer = tokenizer
        self._template = template
        self._defaults = defaults
        self._form: ReplyForm = form
        self._auto = constrain == "auto"
        self._seed = seed
        self._numbers = itertools.count(1)  # counts requests; next() on it is atomic
        self._added = frozenset(tokenizer.added_tokens.values())
        self._markers = frozenset(tokenizer.added_tokens)
        self._eos = frozenset(tokenizer.eos_ids)
        self.watch = PromptWatch()
        self.vocab = min(info.vocab, tokenizer.vocab_size)

    @classmethod
    def from_directory(
        cls,
        directory: Path,
        info: ModelInfo,
        *,
        constrain: Literal["auto", "required"] | None = None,
        seed: int = 0,
    ) -> Preparer:
        """Read tokenizer, template and sampling defaults of a model directory. Raises LoadFailed."""
        tokenizer = Tokenizer.from_directory(directory)
        template = ChatTemplate.from_directory(directory, tokenizer)
        form = template.form(info.family)
        tokenizer = tokenizer.ending_at(form_table(form).stops)
        return cls(
            info,
            tokenizer,
            template,
            SamplingDefaults.from_directory(directory),
            form=form,
            constrain=constrain or ("auto" if info.embedded else "required"),
            seed=seed,
        )

    def count_tokens(self, conversation: Conversation) -> int:
        """Tokens of the rendered prompt."""
        return len(self.prompt_ids(conversation))

    def prompt_ids(self, conversation: Conversation) -> Sequence[int]:
        """The rendered prompt."""
        return self._template.render(conversation).token_ids

    def encode(self, text: str) -> list[int]:
        """Token ids of a raw prompt."""
        return self._tokenizer.encode(text)

    def task(self, request: GenerateRequest, outbox: Outbox) -> Task:
        """Raises BadRequest (PromptTooLong among them); the engine is untouched then."""
        arrived = time.monotonic()
        params = request.sampling
        check_params(params)
        prompt = self._prompt(request)
        boundaries = prompt.rendered.boundaries if prompt.rendered else ()
        length = self._check_length(prompt.token_ids)
        room = self._info.context - length
        divergence = self._watch(request, prompt)
        number = next(self._numbers)
        marks = choose_marks(boundaries, length, prompt.rendered.reply_begins if prompt.rendered else None)
        job = Job(
            id=request.id or f"request-{number}",
            tokens=list(prompt.token_ids),
            limit=length + min(room, params.max_tokens or room),
            marks=marks,
            head=stable_head(boundaries, length),
            agent=isinstance(request.prompt, Conversation) and bool(request.prompt.tools),
            lasting=lasting_marks(boundaries, marks),
        )
        return Task(
            job=job,
            sampler=Sampler(params, self._defaults, job.tokens, seed=self._seed + number),
            reply=self._reply(prompt, params),
            outbox=outbox,
            eos=frozenset() if params.ignore_eos else self._eos,
            hidden=self._eos,
            rendered=prompt.rendered,
            divergence=divergence,
            constraint=prompt.constraint,
            arrived=arrived,
        )

    def remember(self, task: Task, calls: Iterable[tuple[str, str]]) -> None:
        """Note what a task has generated, so that its reply is rendered the same when a client sends it back.

        `calls` are its complete calls: id, and arguments as JSON text.
        """
        reply = task.job.tokens[task.job.prompt :]
        if task.rendered is not None and reply:
            self._template.remember(task.rendered, reply, calls)

    def _prompt(self, request: GenerateRequest) -> _Prompt:
        if isinstance(request.prompt, Conversation):
            return self._chat_prompt(request.prompt, request.sampling.json_schema)
        raw = request.prompt
        if request.sampling.json_schema is not None:
            raise BadRequest("json_schema needs a conversation, not a raw prompt", field="json_schema")
        ids = self._tokenizer.encode(raw) if isinstance(raw, str) else list(raw)
        wrong = next((token for token in ids if not 0 <= token < self.vocab), None)
        if wrong is not None:
            raise BadRequest(f"token id {wrong} is not in this vocabulary of {self.vocab}", field="prompt")
        return _Prompt(ids, RawText())

    def _chat_prompt(self, conversation: Conversation, json_schema: str | None) -> _Prompt:
        rendered = self._template.render(conversation)
        self._check_length(rendered.token_ids)  # before a grammar is compiled for nothing
        for note in rendered.notes:
            log.warning("%s", note)
        thinking_open = rendered.thinking_open
        constraint = constraint_for(
            self._form, conversation, self._tokenizer, thinking_open, json_schema, auto=self._auto
        )
        parser = ReplyParser(
            self._form, conversation.tools, thinking_open=thinking_open, native_markers=self._markers
        )
        return _Prompt(rendered.token_ids, parser, rendered, constraint)

    def _reply(self, prompt: _Prompt, params: SamplingParams) -> ReplyStream:
        tokenizer = self._tokenizer
        return ReplyStream(
            Detokenizer(tokenizer),
            prompt.parser,
            added=self._added,
            stops=params.stop,
            thinking_open=prompt.rendered is not None and prompt.rendered.thinking_open,
            text_of=lambda token: tokenizer.decode([token]),
        )

    def _watch(self, request: GenerateRequest, prompt: _Prompt) -> Divergence | None:
        """Where the prompt changed though it should not; it is logged once for each conversation."""
        if not isinstance(request.prompt, Conversation) or prompt.rendered is None:
            return None
        messages = request.prompt.messages
        begins = next((message.text for message in messages if message.role == "user"), "")
        conversation = (request.session, hash(begins), bool(request.prompt.tools))
        rendered = prompt.rendered
        found, first = self.watch.note(
            conversation, rendered.token_ids, rendered.boundaries, rendered.reply_begins
        )
        if found is not None and first:
            log.warning(
                "turn %d of a conversation differs from the one before at token %d, in block %s: %d tokens "
                "behind it are computed again; look for a date, a counter or the like there",
                *(found.turn, found.token, found.block, found.lost),
            )
        return found

    def _check_length(self, token_ids: Sequence[int]) -> int:
        """The prompt must leave room for one token of reply at least."""
        length, context = len(token_ids), self._info.context
        if length == 0:
            raise BadRequest("the prompt is empty", field="prompt")
        if length >= context:
            raise PromptTooLong(length, context if length > context else context - 1)
        return length
