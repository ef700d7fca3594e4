"""What an experiment is doing, on stderr: "case 3 of 8, compiling newton / blocks, 2:10 left".

A terminal shows one line, rewritten at every step; a log gets a plain line every half a minute.
Only `Progress.print` writes to stdout.
"""

import contextlib
import math
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any, TextIO

OFTEN, LOG = 0.5, 30.0  # seconds between the steps of a loop that are shown; lines of a log
ERASE = "\r\x1b[K"
INTERRUPTED = 130  # exit code after Ctrl-C, as of a shell


class Progress:
    """How far a run is: cases done, what the current one is doing, seconds left.

    The engine reports to `PROGRESS`, the one of this process, whether or not it is shown.
    """

    def __init__(self) -> None:
        self._stream: TextIO | None = None  # while it is shown
        self._due = 0.0  # when a log gets its next line
        self._is_written = False  # whether the terminal's last line is ours
        self._is_interrupted = False
        self.reset("importing jax")

    def reset(self, doing: str, total: int = 0, seconds: float | None = None) -> None:
        """Begin to count.

        Args:
            doing: what happens before the first case.
            total: number of cases; 0 if there are none to count.
            seconds: time limit of all cases; they may end sooner.
        """
        self._doing, self._total, self._seconds = doing, total, seconds
        self._number, self._done, self._start = 0, 0.0, time.monotonic()

    def case(self, number: int, doing: str = "preparing") -> None:
        """Case ``number``, counted from 0, begins."""
        self._number = number
        self.say(doing, 0.0)

    def say(self, doing: str, done: float | None = None) -> None:
        """What happens now, and which fraction of the case is done, if that has changed.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed, and Python or jax has swallowed its exception.
        """
        self._doing = doing
        if done is not None:
            self._done = done
        self._show()
        if self._is_interrupted:
            raise KeyboardInterrupt

    def share(self) -> float:
        """Seconds that this case may take: an equal share of what is left for all others, too."""
        if self._seconds is None or not self._total:
            return math.inf
        left = max(self._seconds - (time.monotonic() - self._start), 0.0)
        return left / (self._total - self._number)

    def steps(self, doing: str, items: Any, total: int) -> Iterator[Any]:
        """The items of a loop that is all of a case, counted in its line."""
        said = -OFTEN
        for number, item in enumerate(items):
            if (now := time.monotonic()) >= said + OFTEN or self._is_interrupted:
                said = now
                self.say(f"{doing}, step {number + 1} of {total}", number / total)
            yield item

    def line(self) -> str:
        """What is shown."""
        case = [f"case {self._number + 1} of {self._total}"] if self._total else []
        left = self._left()
        return ", ".join([*case, self._doing, *([] if left is None else [f"{clock(left)} left"])])

    def print(self, text: str) -> None:
        """Print to stdout, out of the way of the line on the terminal."""
        self._erase()
        print(text, flush=True)

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Show it on stderr while the block runs."""
        self._stream, self._due = sys.stderr, time.monotonic() + LOG
        self._show()
        try:
            yield
        finally:
            self._erase()
            self._stream = None

    @contextlib.contextmanager
    def interrupts(self) -> Iterator[None]:
        """Let no Ctrl-C get lost in the block.

        Python swallows it in callbacks and destructors, and so do modules written in C++ while they
        are imported: one in ten while jax compiles its first program. `say` then raises it again.
        """

        def interrupt(number: int, frame: Any) -> None:
            self._is_interrupted = True
            raise KeyboardInterrupt

        def silent(unraisable: Any) -> None:
            if not issubclass(unraisable.exc_type, KeyboardInterrupt):
                hook(unraisable)

        before, hook = signal.signal(signal.SIGINT, interrupt), sys.unraisablehook
        sys.unraisablehook = silent
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)
            sys.unraisablehook, self._is_interrupted = hook, False

    def _show(self) -> None:
        if self._stream is None:
            return
        if self._stream.isatty() and os.environ.get("TERM") != "dumb":
            self._is_written = True
            width = shutil.get_terminal_size().columns - 1
            print(ERASE + self.line()[:width], end="", flush=True, file=self._stream)
        elif (now := time.monotonic()) >= self._due:
            self._due = now + LOG
            print(self.line(), flush=True, file=self._stream)

    def _erase(self) -> None:
        if self._is_written and self._stream is not None:
            print(ERASE, end="", flush=True, file=self._stream)
        self._is_written = False

    def _left(self) -> float | None:
        """Seconds left, if the rest takes as long as what is done; None before the first step."""
        elapsed = time.monotonic() - self._start
        share = (self._number + self._done) / self._total if self._total else 0.0
        left = elapsed / share - elapsed if share > 0 else None
        if self._seconds is None or not self._total:
            return left
        limit = max(self._seconds - elapsed, 0.0)
        return limit if left is None else min(left, limit)


def clock(seconds: float) -> str:
    """Minutes and seconds, 2:10; with hours, 1:02:10."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


PROGRESS = Progress()
