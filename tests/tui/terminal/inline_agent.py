"""Draws as inline agents do: text flows, the rows below it are drawn again in place, a spinner turns."""

from __future__ import annotations

import os
import shutil
import sys
import tty


def frame(step: int, columns: int) -> str:
    """One synchronised redraw of the four lower rows."""
    bar = "─" * (columns - 2)
    title = f"\x1b]0;{'⠂⠐⠒'[step % 3]} inline\x07"
    rows = (
        f"\x1b[38;2;{40 * (step % 6)};140;255m✻\x1b[39m Working… \x1b[2m({step}s · esc to interrupt)\x1b[22m",
        f"╭{bar}╮",
        f"│ \x1b[1m>\x1b[22m \x1b[7m \x1b[27m{' ' * (columns - 6)}│",
        f"╰{bar}╯",
    )
    drawn = "\r\n".join(f"\x1b[2K{row}" for row in rows)
    return f"\x1b[?2026h{title}\x1b[4A\r{drawn}\r\n\x1b[?2026l"


def main() -> None:
    write = sys.stdout.write
    tty.setraw(0)
    write("\x1b[?2004h\x1b[?1004h\x1b[?25l" + "\r\n" * 4)
    for turn in range(4):
        columns = shutil.get_terminal_size().columns
        write(f"\x1b[4A\r\x1b[J\x1b[48;5;237m> question {turn} with 日本語 in it\x1b[K\x1b[0m\r\n\r\n")
        for word in range(30):
            write(
                f"\x1b[1mword{word}\x1b[0m "
                + ("\x1b[32m+ added line\x1b[K\x1b[0m\r\n" if word % 7 == 6 else "")
            )
        write("\r\n" * 5)
        for step in range(3):
            write(frame(step, columns))
        sys.stdout.flush()
        if turn < 3:
            os.read(0, 16)


if __name__ == "__main__":
    main()
