"""Lines that several threads print above live lines are not lost while the number of live lines changes."""

from __future__ import annotations

import io
import sys
import threading
import time

import pyte

from headway.observe import status_line
from headway.observe.terminal_text import live_screens, write_line


class SlowTerminal(io.StringIO):
    """Switches threads during each write."""

    def write(self, text: str) -> int:
        time.sleep(0.0005)
        return super().write(text)


def test_no_line_is_lost_while_the_number_of_live_lines_changes() -> None:
    terminal = SlowTerminal()
    screen = status_line._Screen(status_line._Console(file=terminal, force_terminal=True, width=80, height=24))
    line = status_line.LiveLine(screen)
    screen.lines[line] = []
    status_line._screens.append(screen)
    live_screens.append(screen)
    over = threading.Event()

    def draw() -> None:
        count = 0
        while not over.is_set():
            line.show("status", [f"bar {number}" for number in range(count % 4)])
            count += 1

    def write(number: int) -> None:
        for step in range(40):
            write_line(f"thread {number} step {step}", sys.stderr)

    drawing = threading.Thread(target=draw)
    writing = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for thread in (drawing, *writing):
        thread.start()
    for thread in writing:
        thread.join()
    over.set()
    drawing.join()
    line.close()
    shown = pyte.HistoryScreen(80, 24, history=1000)
    pyte.Stream(shown).feed(terminal.getvalue().replace("\n", "\r\n"))
    above = ["".join(row[x].data for x in range(80)) for row in shown.history.top]
    seen = {text.rstrip() for text in (*above, *shown.display)}
    assert {f"thread {number} step {step}" for number in range(3) for step in range(40)} <= seen
