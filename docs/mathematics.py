"""Formulas as MathML: browsers draw it without scripts or a network.

Authors write ``$z_l$`` in a sentence and ``$$...$$`` in a paragraph of its own, as on GitHub.
"""

import re
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError

# As pymdownx.arithmatex writes them.
FORMULA = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\[(\[](?P<latex>.*?)\\[)\]]</(?P=tag)>', re.DOTALL
)
HEADING = re.compile(r"<h[1-6][^>]*>(?:(?!</h).)*arithmatex", re.DOTALL)
CODE = re.compile(r"<(pre|code|script|style)\b.*?</\1>|<[^>]*>", re.DOTALL)
# latex2mathml tells a letter of \mathrm from any other by its escape alone.
UPRIGHT = re.compile(r"<mi>(?=&#x000(?:[46][1-9A-F]|[57][0-9A]);)")
LIMITS = {"msub": "munder", "msup": "mover", "msubsup": "munderover"}
SCRIPTS = {*LIMITS, *LIMITS.values()}


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Typeset all formulas of a page, those of docstrings among them.

    Raises:
        PluginError: a formula that cannot be drawn, or a dollar sign that belongs to none.
    """
    try:
        return typeset(html)
    except ValueError as error:
        raise PluginError(f"{page.file.src_uri}: {error}") from error


def typeset(html: str) -> str:
    """The page with MathML in the place of formulas.

    Raises:
        ValueError: a formula that cannot be drawn, or a dollar sign that belongs to none.
    """
    if HEADING.search(html):
        raise ValueError("a formula in a heading, which the table of contents cannot show")
    text = CODE.sub("", html)
    if "$" in text:
        start = max(text.index("$") - 30, 0)
        raise ValueError(
            f"a dollar sign outside of formulas and code: {text[start : start + 60]!r}"
        )
    return FORMULA.sub(
        lambda found: '<{0} class="arithmatex">{1}</{0}>'.format(
            found["tag"], mathml(found["latex"], block=found["tag"] == "div")
        ),
        html,
    )


def mathml(latex: str, block: bool) -> str:
    """A formula within a sentence or as a block of its own.

    Raises:
        ValueError: it has commands that are not known.
    """
    for escaped, character in (("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&")):
        latex = latex.replace(escaped, character)
    converted = convert(latex.strip(), xmlns="", display="block" if block else "inline")
    try:
        formula = ElementTree.fromstring(UPRIGHT.sub('<mi mathvariant="normal">', converted))
    except ElementTree.ParseError as error:
        raise ValueError(f"{latex!r}: {error} (an & outside of a matrix?)") from error
    for element in reversed(list(formula.iter())):  # what is inside first
        tidy(element, latex, block)
    return ElementTree.tostring(formula, encoding="unicode")


def tidy(element: ElementTree.Element, latex: str, block: bool) -> None:
    """Mend what latex2mathml leaves to the browser, and browsers do not do."""
    text = element.text or ""
    if "\\" in text:
        raise ValueError(f"{latex!r}: {text} is not known to latex2mathml")
    if element.tag == "mo" and len(text) > 1 and text.isalpha():
        element.tag = "mi"  # max and the like are spaced like log
    if text in ("‖", "|", "⌈", "⌉", "⌊", "⌋") and "stretchy" not in element.attrib:
        element.tag, element.attrib["stretchy"] = "mo", "false"  # only \left makes them grow
    if element.get("accent") and text == "":
        element[1].text = {"^": "ˆ", "~": "˜"}.get(element[1].text or "", element[1].text)
    if block and element.tag in LIMITS and element[0].text in ("∑", "∏", "lim", "max", "min"):
        element.tag = LIMITS[element.tag]
    if element.tag in ("mrow", "mtd", "math"):
        for place, (left, right) in reversed(list(enumerate(pairwise(element), 1))):
            if (is_function(left) and right.tag != "mo") or (
                is_function(right) and left.tag != "mo"
            ):
                element.insert(place, ElementTree.Element("mspace", width="0.167em"))


def is_function(element: ElementTree.Element) -> bool:
    """Whether it is log, tanh, max and the like, also with a base or limits."""
    if element.tag in SCRIPTS:
        return is_function(element[0])
    return element.tag == "mi" and len(element.text or "") > 1
