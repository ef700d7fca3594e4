"""Docstrings and signatures for the reference.

Examples and tables become code, public names become links, and signatures show values instead of
the names of constants and type aliases.
"""

import ast
import re
from typing import Any

from griffe import AliasResolutionError, Extension

EXAMPLE = re.compile(r"^Example(?:, (.*))?:$", re.MULTILINE)
TABLE = re.compile(r"^(=+(?: +=+)+)\n(.*?)\n\1\n(.*?)\n\1$", re.DOTALL | re.MULTILINE)
NAME = re.compile(r"(?<![`\[])`(?:deeppcr\.|depth\.)?(?P<name>\w+)`(?!`)")
WORD = re.compile(r"(?<![\w.\"'])[A-Z]\w*")
ALIASES = ("|", "Literal[", "Callable[")  # what the value of a type alias contains


class Docstrings(Extension):
    """Rewrites the docstrings and signatures of a package once it is loaded."""

    def on_package(self, *, pkg: Any, **_: Any) -> None:
        """See `griffe.Extension`."""
        public = {}
        for name in pkg.exports:
            if not pkg[name].is_module:
                public[name] = f"{pkg.path}.{name}"
            elif name in pkg[name].members:  # a function with the name of its module
                public[name] = pkg[name].members[name].canonical_path
        rewrite(pkg, lambda found: link(found, public))


def rewrite(of: Any, link: Any) -> None:
    """Rewrite the docstring and signature of ``of``, and those of its members."""
    if of.docstring:
        of.docstring.value = NAME.sub(link, as_markdown(of.docstring.value))
    if of.is_function:
        for parameter in of.parameters:
            parameter.annotation = spelled_out(parameter.annotation, of)
            parameter.default = spelled_out(parameter.default, of)
        of.returns = spelled_out(of.returns, of)
    elif of.is_attribute and of.parent.is_class:  # a field of a dataclass
        of.annotation, of.value = spelled_out(of.annotation, of), spelled_out(of.value, of)
    for member in of.members.values():
        if not member.is_alias:
            rewrite(member, link)


def spelled_out(expression: Any, of: Any) -> Any:
    """An expression of a signature, with the values of constants and type aliases in it."""
    if expression is None:
        return None
    text = str(expression)
    written = WORD.sub(lambda found: value_of(found[0], of) or found[0], text)
    return expression if written == text else written


def value_of(name: str, of: Any) -> str | None:
    """The value of a number or type alias that ``name`` is in the module of ``of``."""
    try:
        found = of.module[name]
        target = found.final_target if found.is_alias else found
        value = str(target.value)
    except (KeyError, AttributeError, AliasResolutionError):  # no constant, or not of this package
        return None
    if any(sign in value for sign in ALIASES):
        return str(spelled_out(value, target))
    try:
        return str(ast.literal_eval(value))
    except (ValueError, SyntaxError):
        return None


def link(found: re.Match[str], public: dict[str, str]) -> str:
    """A name in backticks; with a link, if it is public."""
    name = found["name"]
    return f"[`{name}`][{public[name]}]" if name in public else found[0]


def as_markdown(text: str) -> str:
    """Sections of examples with the heading that the parser expects, and tables as code."""
    text = TABLE.sub(r"```text\n\2\n\3\n```", text)
    return EXAMPLE.sub(
        lambda f: f"Examples:\n    {f[1].capitalize()}:\n" if f[1] else "Examples:", text
    )
