"""`python -m experiments`: what it lists, and what it says when something is missing."""

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from experiments import __main__ as command
from experiments.bench.table import WIDTH

ROOT = Path(__file__).parents[2]


def test_alone_it_lists_every_experiment_with_its_question_and_its_duration() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "experiments"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    first = next(k for k, line in enumerate(lines) if line.split() == ["takes", "answers"])
    listed = [line.split()[0] for line in lines[first + 1 :] if line.startswith("  ")]
    assert listed == sorted(command.registry())
    assert "digits" in command.registry()
    assert max(map(len, lines)) <= WIDTH
    assert done.stderr == ""


@pytest.mark.parametrize("name", sorted(command.registry().keys() - {"report", "suite"}))
def test_every_experiment_asks_a_question_and_says_how_long_it_takes(name: str) -> None:
    question, takes = command.summary(command.registry()[name])
    assert question.endswith("?")
    assert re.fullmatch(r"\d+ (min|h)", takes)


def test_what_is_shared_is_no_experiment() -> None:
    assert not {"bench", "models", "results", "__main__", "__init__"} & command.registry().keys()


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(SystemExit, match=r"no experiment is called 'digit'; there are: .*digits"):
        command.main(["digit"])


def test_options_go_to_the_experiment(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    monkeypatch.setattr(
        command.importlib, "import_module", lambda _: SimpleNamespace(main=seen.append)
    )
    command.main(["digits", "--steps", "3"])
    assert seen == [["--steps", "3"]]


def test_a_missing_extra_is_named_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        sys.modules, "optax", None
    )  # makes `import optax` fail as if it were not installed
    monkeypatch.delitem(sys.modules, "experiments.digits", raising=False)
    with pytest.raises(
        SystemExit, match=r'^digits needs optax, .*: pip install "deeppcr\[experiments\]"$'
    ):
        command.main(["digits"])


def test_a_missing_module_of_ours_is_a_bug_and_shown_as_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "experiments.digits", None)
    with pytest.raises(ModuleNotFoundError, match=r"experiments\.digits"):
        command.main(["digits"])
