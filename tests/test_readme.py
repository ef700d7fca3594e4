"""The Python in the README runs, block after block, as it stands there."""

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"

# In a process of its own, with jax as users have it; a line number in an error is one of the README.
PROGRAM = """
import sys
namespace = {"__name__": "__main__"}
for block in sys.stdin.read().split("\\f"):
    exec(compile(block, "README.md", "exec"), namespace)
"""


def blocks(text):
    """Every ```python block, moved down to the line that it has in ``text``."""
    for found in re.finditer(r"^```python[^\n]*\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        yield "\n" * text[: found.start(1)].count("\n") + found.group(1)


def test_every_python_block_runs(tmp_path):
    program = "\f".join(blocks(README.read_text(encoding="utf-8")))
    command = [
        sys.executable,
        "-W",
        "error",
        "-c",
        f"import sys; sys.path.insert(0, {str(README.parent)!r})\n{PROGRAM}",
    ]
    done = subprocess.run(command, cwd=tmp_path, input=program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_blocks_are_found_and_keep_their_lines():
    text = "one\n```python\na = 1\n```\n```sh\nls\n```\n```python\nb = a\nc = 2\n```\n"
    assert list(blocks(text)) == ["\n\na = 1\n", "\n\n\n\n\n\n\n\nb = a\nc = 2\n"]
