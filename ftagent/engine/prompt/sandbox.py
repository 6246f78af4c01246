"""Compiles chat templates, which are programs by strangers, and runs them within bounds.

Jinja2's sandbox keeps them from Python's internals; the limits here keep them from taking all time or memory.
What a template may use is what `transformers` 5.24 gives it, since templates are written against that. Knows
nothing of conversations.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from datetime import datetime
from typing import Any

import jinja2
import jinja2.exceptions
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.runtime
import jinja2.sandbox
import jinja2.utils

MAX_ITERATIONS = 2_000_000  # loop passes in one rendering; real prompts of 200k tokens take some 100k
MAX_CHARACTERS = 64 * 2**20  # of one rendering, and of one string a template builds by multiplication

_passes: ContextVar[list[int]] = ContextVar("passes")


class TemplateRefused(jinja2.TemplateError):
    """The template itself called `raise_exception`: this conversation is not one it accepts."""


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}` marks what the model wrote, for training. For rendering it is transparent."""

    tags = {"generation"}  # noqa: RUF012 (the base class declares it so)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Namespace(jinja2.utils.Namespace):
    """Jinja2's namespace() without underscore names, so that no dunder can be stored on it."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *rest = args
        for name in dict(*rest, **kwargs):
            _check_name(name)
        jinja2.utils.Namespace.__init__(self, *rest, **kwargs)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"*", "**", "%"})

    def _parse(self, source: str, name: str | None, filename: str | None) -> jinja2.nodes.Template:
        tree = super()._parse(source, name, filename)
        for loop in list(tree.find_all(jinja2.nodes.For)):
            loop.iter = jinja2.nodes.Filter(loop.iter, "counted", [], [], None, None, lineno=loop.lineno)
        return tree

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            _check_product(left, right)
            _check_product(right, left)
        elif operator == "**" and not (_small(left, 2**32) and _small(right, 64)):
            raise jinja2.exceptions.SecurityError("power of large numbers")
        elif operator == "%" and isinstance(left, str) and len(left) > 1000:
            raise jinja2.exceptions.SecurityError("formatting with a long pattern")
        return super().call_binop(context, operator, left, right)


def compile_template(source: str) -> Callable[..., str]:
    """A function that renders `source` with the keyword arguments it is given.

    Raises jinja2.TemplateSyntaxError here. The function raises TemplateRefused when the template refuses, and
    jinja2's SecurityError (a TemplateError) when the template exceeds a bound; other errors of the template's
    own code come out as they are.
    """
    environment = _Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationTag, jinja2.ext.loopcontrols],
    )
    environment.filters["tojson"] = _tojson
    environment.filters["counted"] = _counted
    environment.globals.update(
        raise_exception=_raise_exception, strftime_now=_strftime_now, namespace=_Namespace, dict=_make_dict
    )
    environment.globals.pop("lipsum", None)
    template = environment.from_string(source)

    def render(**variables: Any) -> str:
        token = _passes.set([0])
        try:
            return "".join(_bounded(template.generate(**variables)))
        finally:
            _passes.reset(token)

    return render


def _bounded(chunks: Iterable[str]) -> Iterator[str]:
    total = 0
    for chunk in chunks:
        total += len(chunk)
        if total > MAX_CHARACTERS:
            raise jinja2.exceptions.SecurityError(f"the rendering exceeds {MAX_CHARACTERS} characters")
        yield chunk


def _counted(iterable: Iterable[Any]) -> Iterator[Any]:
    """The items of every loop of a template, counted over the whole rendering."""
    passes = _passes.get()
    for item in iterable:
        passes[0] += 1
        if passes[0] > MAX_ITERATIONS:
            raise jinja2.exceptions.SecurityError(f"more than {MAX_ITERATIONS} loop passes")
        yield item


def _check_product(sequence: Any, factor: Any) -> None:
    if isinstance(sequence, str | bytes | list | tuple) and isinstance(factor, int):
        if len(sequence) * factor > MAX_CHARACTERS:
            raise jinja2.exceptions.SecurityError("multiplication makes too long a value")
    elif isinstance(sequence, int) and sequence.bit_length() > 4096:
        raise jinja2.exceptions.SecurityError("multiplication of very large numbers")


def _small(value: Any, bound: int) -> bool:
    return isinstance(value, int | float) and -bound <= value <= bound


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"namespace attribute {name!r}")


def _make_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)


def _raise_exception(message: str) -> None:
    raise TemplateRefused(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without Jinja2's own escaping for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
