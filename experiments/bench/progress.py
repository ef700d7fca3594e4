"""What an experiment is doing, on stderr: "case 3 of 8, compiling newton / blocks, 2:10 left".

A terminal shows one line, rewritten twice a second; a log gets a plain line every half a minute.
The first line comes after three seconds. Only `Progress.print` writes to stdout.
"""

import contextlib
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, TextIO

PATIENCE = 3.0  # seconds before the first line
TERMINAL, LOG = 0.5, 30.0  # seconds between lines
ERASE = "\r\x1b[K"
AGAIN = 2.0  # seconds from a Ctrl-C to its repetition; processes that a case has started end sooner
INTERRUPTED = 130  # exit code after Ctrl-C, as of a shell


class Progress:
    """How far a run is: cases done, what the current one is doing, seconds left.

    The engine reports to `PROGRESS`, the one of this process, whether or not it is shown.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._stream: TextIO | None = None  # while it is shown
        self._is_written = False  # whether the terminal's last line is ours
        self.reset("importing jax")

    def reset(
        self, doing: str, total: int = 0, unit: str = "case", seconds: float | None = None
    ) -> None:
        """Begin to count.

        Args:
            doing: what happens before the first case.
            total: number of cases; 0 if there are none to count.
            unit: what a case is called.
            seconds: time limit of all cases; they may end sooner.
        """
        with self._lock:
            self._doing, self._total, self._unit, self._seconds = doing, total, unit, seconds
            self._number, self._done, self._start = 0, 0.0, time.monotonic()

    def case(self, number: int, doing: str = "preparing") -> None:
        """Case ``number``, counted from 0, begins."""
        with self._lock:
            self._number, self._done = number, 0.0
        self.say(doing)

    def say(self, doing: str, done: float | None = None) -> None:
        """What happens now, and which fraction of the case is done, if that has changed."""
        self._doing = doing
        if done is not None:
            self._done = done

    def steps(self, doing: str, items: Any, total: int) -> Iterator[Any]:
        """The items of a loop that is all of a case, counted in its line."""
        for number, item in enumerate(items):
            self.say(f"{doing}, step {number + 1} of {total}", number / total)
            yield item

    def line(self) -> str:
        """What is shown."""
        with self._lock:
            parts = [self._doing]
            if self._total:
                parts = [f"{self._unit} {self._number + 1} of {self._total}", self._doing]
            left = self._left()
            return ", ".join(parts if left is None else [*parts, f"{clock(left)} left"])

    def print(self, text: str) -> None:
        """Print to stdout, out of the way of the line on the terminal."""
        with self._lock:
            self._erase()
            print(text, flush=True)

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Show it on stderr while the block runs."""
        ended = threading.Event()
        thread = threading.Thread(target=self._repeat, args=(ended,), daemon=True)
        self._stream = sys.stderr
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            self._erase()
            self._stream = None

    def _repeat(self, ended: threading.Event) -> None:
        pause = PATIENCE
        while not ended.wait(pause):
            pause = TERMINAL if self._is_terminal else LOG
            with self._lock:
                self._write()

    @property
    def _is_terminal(self) -> bool:
        return (
            self._stream is not None and self._stream.isatty() and os.environ.get("TERM") != "dumb"
        )

    def _write(self) -> None:
        if self._stream is None:
            return
        line = self.line()
        if self._is_terminal:
            width = shutil.get_terminal_size().columns - 1
            self._stream.write(ERASE + line[:width])
            self._is_written = True
        else:
            self._stream.write(line + "\n")
        self._stream.flush()

    def _erase(self) -> None:
        if self._is_written and self._stream is not None:
            self._stream.write(ERASE)
            self._stream.flush()
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


@contextlib.contextmanager
def interrupts() -> Iterator[None]:
    """Raise a KeyboardInterrupt again until the block ends.

    Python swallows it in callbacks and destructors, and so do modules written in C++ while they are
    imported. jax does both: one Ctrl-C in ten is lost while it compiles its first program (0.10).
    """
    before, hook = signal.getsignal(signal.SIGINT), sys.unraisablehook
    again: list[threading.Timer] = []

    def interrupt(number: int, frame: Any) -> None:
        main = threading.main_thread().ident
        again.append(threading.Timer(AGAIN, signal.pthread_kill, (main, signal.SIGINT)))
        again[-1].start()
        raise KeyboardInterrupt

    def silent(unraisable: Any) -> None:
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            hook(unraisable)

    signal.signal(signal.SIGINT, interrupt)
    sys.unraisablehook = silent
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        sys.unraisablehook = hook
        for timer in again:
            timer.cancel()


def clock(seconds: float) -> str:
    """Minutes and seconds, 2:10; with hours, 1:02:10."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


PROGRESS = Progress()
