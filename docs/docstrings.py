"""Docstrings as the reference shows them: examples and tables as code, public names as links."""

import re
from typing import Any

from griffe import Extension

EXAMPLE = re.compile(r"^Example(?:, (?P<which>.*))?:$")
EDGE = re.compile(r"^=+( +=+)+$")
NAME = re.compile(r"(?<![`\[])`(?:deeppcr\.|depth\.)?(?P<name>\w+)`(?!`)")


class Docstrings(Extension):
    """Rewrites the docstrings of a package once it is loaded."""

    def on_package(self, *, pkg: Any, **_: Any) -> None:
        """See `griffe.Extension`."""
        public = {}
        for name in pkg.exports:
            if not pkg[name].is_module:
                public[name] = f"{pkg.path}.{name}"
            elif name in pkg[name].members:  # a function that has the name of its module
                public[name] = f"{pkg.path}.{name}.{name}"
        rewrite(pkg, lambda found: link(found, public))


def rewrite(of: Any, link: Any) -> None:
    """What is written about ``of`` and about everything in it."""
    if of.docstring:
        of.docstring.value = NAME.sub(link, "\n".join(as_markdown(of.docstring.value.split("\n"))))
    for member in of.members.values():
        if not member.is_alias:
            rewrite(member, link)


def link(found: re.Match[str], public: dict[str, str]) -> str:
    """A name in backticks; with a link, if it is public."""
    name = found["name"]
    return f"[`{name}`][{public[name]}]" if name in public else found[0]


def as_markdown(lines: list[str]) -> list[str]:
    """Sections of examples by the name that the parser knows, and tables between fences."""
    edges = [place for place, line in enumerate(lines) if EDGE.match(line)]
    rewritten = []
    for place, line in enumerate(lines):
        if found := EXAMPLE.match(line):
            rewritten += [
                "Examples:",
                *([f"    {found['which'].capitalize()}:", ""] if found["which"] else []),
            ]
        elif place in edges[::3]:  # a table has three: above its head, below it, and at its end
            rewritten.append("```text")
        elif place in edges[2::3]:
            rewritten.append("```")
        elif place not in edges:
            rewritten.append(line)
    return rewritten
