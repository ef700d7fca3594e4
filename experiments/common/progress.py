"""A progress bar for what takes longer than some seconds; nothing where there is no terminal, or no tqdm."""

from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

SECONDS = 3  # before it is shown


def progress(items: Iterable[T], label: str = "", total: int | None = None) -> Iterator[T]:
    """The items, with a bar on stderr once they take longer than three seconds.

    Args:
        items: what to go through.
        label: shown before the bar.
        total: how many there are, where ``items`` does not say.
    """
    try:
        from tqdm import tqdm
    except ModuleNotFoundError:
        yield from items
        return
    yield from tqdm(
        items,
        desc=label or None,
        total=total,
        delay=SECONDS,
        disable=None,
        leave=False,
        dynamic_ncols=True,
    )
