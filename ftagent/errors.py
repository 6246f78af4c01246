"""Every error that ftagent raises on purpose, and the exit code that the command line gives it.

    FtError                      1
      ConfigError                2   a setting, flag or request that cannot be honoured
        BadRequest               2   a request body: names the field
          PromptTooLong          2   carries both numbers
      EngineError                3   the engine cannot start or cannot go on
        LoadFailed               3   a checkpoint that is damaged, incomplete or of an unknown family
        QueueFull                3   too many requests wait already; try again later
        EngineStopped            3   the engine ended while requests were open
        BooksBroken              3   the engine's pools and tables do not add up: it cannot be trusted
      ConvertFailed              1   a conversion that cannot begin, go on or be trusted
      PullFailed                 1   a download that cannot begin, go on or be trusted
      Diverged                   4   a replay differs from its record
      ResizeRefused              5   carries the largest size that fits
      AgentFailed              125   the wrapper could not run the agent
      AgentNotExecutable       126
      AgentNotFound            127

The message is one line: what is wrong, where, and what to do.
"""

from __future__ import annotations


class FtError(Exception):
    """Base of all. `exit_code` is what the command line returns."""

    exit_code = 1


class ConfigError(FtError):
    exit_code = 2


class BadRequest(ConfigError):
    """A request that cannot be served as asked. `field` is the name in the client's body, if any."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class PromptTooLong(BadRequest):
    """The prompt has `tokens`, the context holds `limit`. The words are the ones agents act on."""

    def __init__(self, tokens: int, limit: int) -> None:
        super().__init__(
            f"prompt is too long: {tokens} tokens > {limit} maximum (the context length of this model)"
        )
        self.tokens = tokens
        self.limit = limit


class EngineError(FtError):
    exit_code = 3


class LoadFailed(EngineError):
    pass


class QueueFull(EngineError):
    """`retry_after_s` is a hint for clients."""

    def __init__(self, message: str, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class EngineStopped(EngineError):
    pass


class BooksBroken(EngineError):
    """`finding` says what does not add up."""

    def __init__(self, finding: str) -> None:
        super().__init__(
            f"the engine's books do not add up: {finding}; start it again, and please report this"
        )


class ConvertFailed(FtError):
    pass


class PullFailed(FtError):
    pass


class Diverged(FtError):
    exit_code = 4


class ResizeRefused(FtError):
    exit_code = 5

    def __init__(self, message: str, largest: int) -> None:
        super().__init__(message)
        self.largest = largest


class AgentFailed(FtError):
    exit_code = 125


class AgentNotExecutable(FtError):
    exit_code = 126


class AgentNotFound(FtError):
    exit_code = 127
