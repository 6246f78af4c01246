"""A full-screen program by curses: windows over one another, colours, line drawing, mouse on."""

from __future__ import annotations

import curses


def draw(screen: curses.window, chosen: int) -> None:
    height, width = screen.getmaxyx()
    screen.erase()
    screen.bkgd(" ", curses.color_pair(1))
    for row in range(height - 1):
        screen.addnstr(row, 0, f"{row:3} background text 日本 " * 5, width - 1)
    window = curses.newwin(9, min(40, width - 4), 2, 2)
    window.bkgd(" ", curses.color_pair(2))
    window.border()
    window.addstr(0, 2, " choose ", curses.A_BOLD)
    for row in range(6):
        look = curses.A_REVERSE if row == chosen else curses.A_UNDERLINE if row % 2 else curses.A_DIM
        window.addstr(row + 1, 2, f"{row} option", look)
    screen.noutrefresh()
    window.noutrefresh()
    curses.doupdate()


def main(screen: curses.window) -> None:
    curses.start_color()
    curses.use_default_colors()
    curses.init_pair(1, curses.COLOR_BLUE, -1)
    curses.init_pair(2, 208, 236)
    curses.curs_set(0)
    curses.mousemask(curses.ALL_MOUSE_EVENTS)
    chosen = 0
    while True:
        draw(screen, chosen)
        if screen.getch() == ord("q"):
            return
        chosen += 1


if __name__ == "__main__":
    curses.wrapper(main)
