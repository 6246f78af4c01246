"""The prompts typed before, walked with the up and down keys. Knows no widget."""

from __future__ import annotations

from collections.abc import Sequence


class PromptHistory:
    """Old prompts, oldest first. What is being typed waits below the newest while the user looks back."""

    def __init__(self, prompts: Sequence[str] = ()) -> None:
        self._prompts = list(prompts)
        self._position = len(self._prompts)
        self._draft = ""

    def add(self, prompt: str) -> None:
        """Put `prompt` at the end, unless it repeats the one before, and go back below it."""
        if not self._prompts or self._prompts[-1] != prompt:
            self._prompts.append(prompt)
        self._position = len(self._prompts)
        self._draft = ""

    def older(self, typed: str) -> str | None:
        """The prompt before; None at the oldest. `typed` is what the input holds now."""
        if self._position == 0:
            return None
        if self._position == len(self._prompts):
            self._draft = typed
        self._position -= 1
        return self._prompts[self._position]

    def newer(self) -> str | None:
        """The prompt after, the draft behind the newest; None when already there."""
        if self._position == len(self._prompts):
            return None
        self._position += 1
        return self._draft if self._position == len(self._prompts) else self._prompts[self._position]
