"""What a layer holds, watched while it is called: what the call changed, by name, and everything put back as it was."""

from deeppcr.layers.reach import Reach
from deeppcr.layers.watch import path_of


class Held(Reach):
    """The mutable objects that a call of a layer can reach.

    Raises:
        Unseen: it can reach what cannot be watched.
    """

    def __init__(self, layer: object):
        super().__init__(layer)
        self._changed: set[int] = set()

    def changes(self, is_traced: bool = False) -> list[str]:
        """What was changed, by name.

        With ``is_traced``, when the caller is being traced itself, but for counters that nothing reads: how often the code that
        counts is run is then a matter of jax, which keeps what it traced.
        """
        besides = self.counters if is_traced else ()
        found = []
        for entry in self.watched:
            for name, key, old, new in entry.changes():
                if not (key in besides and type(old) is type(new) is int):
                    found.append(path_of(name, key, entry.target))
                    self._changed.add(id(entry.target))
        return found

    def changed_any_of(self, other: "Held") -> bool:
        """Whether what was changed belongs to ``other``, too."""
        return any(id(entry.target) in self._changed for entry in other.watched)

    def restore(self) -> None:
        """Put everything back as it was."""
        for entry in self.watched:
            entry.restore()
