"""Where the `bittty` library differs from xterm and tmux in what programs rely on. Knows the library alone.

Each function here replaces the board's handler of one operation; the random streams of the tests found them.
"""

from __future__ import annotations

from bittty import Board, Operation
from bittty.style import parse_sgr_sequence
from bittty.video import Line


def correct(board: Board) -> None:
    """Let `board` do these operations as xterm does."""
    board.registry.update(
        ICH=lambda operation: _shift(board, operation.args[0]),
        DCH=lambda operation: _shift(board, -operation.args[0]),
        ECH=lambda operation: _erase_characters(board, operation),
        # A count of zero is one, as everywhere else.
        SU=lambda operation: board.blitter.scroll(max(1, operation.args[0])),
        SD=lambda operation: board.blitter.scroll(-max(1, operation.args[0])),
        CUU=lambda operation: _move_rows(board, -operation.args[0]),
        CUD=lambda operation: _move_rows(board, operation.args[0]),
        CPL=lambda operation: _move_rows(board, -operation.args[0], to_margin=True),
        CNL=lambda operation: _move_rows(board, operation.args[0], to_margin=True),
    )


def _shift(board: Board, columns: int) -> None:
    """ICH (to the right) and DCH (to the left), also on rows outside the scroll region.

    What comes in is blank, with the current background and nothing else of the current style.
    """
    cursor, blitter = board.cursor, board.blitter
    cursor.cancel_pending_wrap()
    if not blitter.left_margin <= cursor.x <= blitter.right_margin:
        return
    end = blitter.right_margin + 1
    count = min(abs(columns), end - cursor.x)
    style = parse_sgr_sequence(board.style.background_ansi())
    blanks = [(style, " ")] * count
    segment = blitter.current_page.grid[cursor.y][cursor.x : end]
    cells = blanks + segment[: len(segment) - count] if columns > 0 else segment[count:] + blanks
    blitter.current_page.replace_cells(cursor.x, cursor.y, cells, style)


def _erase_characters(board: Board, operation: Operation) -> None:
    """ECH: the blanks are as those of ICH."""
    cursor = board.cursor
    cursor.cancel_pending_wrap()
    count = min(operation.args[0], board.width - cursor.x)
    board.blitter.current_page.set(cursor.x, cursor.y, " " * count, board.style.background_ansi())


def _move_rows(board: Board, count: int, to_margin: bool = False) -> None:
    """The margins of the scroll region stop a cursor that is inside of them, in origin mode or not."""
    cursor, blitter = board.cursor, board.blitter
    cursor.cancel_pending_wrap()
    if count < 0:
        top = blitter.scroll_top if cursor.y >= blitter.scroll_top else 0
        cursor.y = max(top, cursor.y + count)
    else:
        bottom = blitter.scroll_bottom if cursor.y <= blitter.scroll_bottom else blitter.rows - 1
        cursor.y = min(bottom, cursor.y + count)
    if to_margin:
        cursor.carriage_return()


def resize(board: Board, columns: int, rows: int) -> list[Line]:
    """Take another size; returns the rows that leave at the top, oldest first.

    A primary screen that becomes lower loses blank rows below the cursor first, then rows at the top, as in
    tmux. The library alone would cut it at the bottom, where programs write.
    """
    cursor, blitter = board.cursor, board.blitter
    if rows >= board.height or blitter.in_alt_screen:
        board.resize_from_frontend(columns, rows)
        return []
    if columns != board.width:
        board.resize(columns, board.height)
    place, cut = blitter.primary_page.reflow(columns, rows, (cursor.display_x, cursor.y))
    board.resize_from_frontend(columns, rows)
    cursor.set_position(*place)
    return list(cut)
