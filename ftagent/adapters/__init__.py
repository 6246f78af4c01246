"""The coding agents ftagent can run, one file each.

To add one: a module with an `Adapter`, and its entry in `_MODULES`. The tests under tests/adapters run over
every entry.
"""

from __future__ import annotations

import difflib
import importlib

from ftagent.adapters.base import Adapter
from ftagent.errors import ConfigError

_MODULES = {
    "claude-code": "ftagent.adapters.claude_code",
    "codex": "ftagent.adapters.codex",
    "opencode": "ftagent.adapters.opencode",
    "pi": "ftagent.adapters.pi",
    "qwen-code": "ftagent.adapters.qwen_code",
    "custom": "ftagent.adapters.custom",
}


def names() -> tuple[str, ...]:
    """The agents there are an adapter for, `custom` last, which is any program."""
    return tuple(_MODULES)


def get(name: str) -> Adapter:
    """The adapter called `name`. Raises ConfigError with the nearest name, and the list."""
    if name not in _MODULES:
        close = difflib.get_close_matches(name, _MODULES, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise ConfigError(f"unknown agent {name!r}; {hint}known agents: {', '.join(_MODULES)}")
    adapter = importlib.import_module(_MODULES[name]).ADAPTER
    assert isinstance(adapter, Adapter)
    return adapter
