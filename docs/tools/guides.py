"""Executes the guides and stores their outputs: `make guides`, `make guides GUIDES=digits`.

    python -m docs.tools.guides            # those whose script has changed
    python -m docs.tools.guides digits     # these, in any case

A guide is a script `docs/guides/NAME.py` in the percent format: `# %%` begins a cell of code,
`# %% [markdown]` one of text. This writes `docs/guides/NAME.ipynb`, which is committed: the site
shows it without executing it, and a test compares the hash of the script in it.
"""

import argparse
import hashlib
import re
import sys
import time
from pathlib import Path
from typing import Any

from keras_vit_command import NOISE

FOLDER = Path(__file__).resolve().parents[1] / "guides"
LONGEST = 3600  # seconds per cell


def script_hash(script: Path) -> str:
    """What a notebook stores of the script that it was made from."""
    return hashlib.sha256(script.read_bytes()).hexdigest()


def is_current(script: Path) -> bool:
    """Whether the committed outputs are those of the script as it is."""
    notebook = script.with_suffix(".ipynb")
    return notebook.exists() and script_hash(script) in notebook.read_text("utf-8")


def execute(script: Path) -> float:
    """Runs a guide from its first cell to its last, writes the notebook, and returns the seconds.

    Raises:
        CellExecutionError: A cell failed; the earlier notebook stays.
    """
    import jupytext
    import nbformat
    from nbclient import NotebookClient

    notebook = jupytext.read(script, fmt="py:percent")
    start = time.perf_counter()
    client = NotebookClient(
        notebook,
        timeout=LONGEST,
        kernel_name="python3",
        # What native libraries print is not a part of a guide.
        extra_arguments=["--IPKernelApp.capture_fd_output=False"],
    )
    client.execute()
    seconds = time.perf_counter() - start
    for output in (output for cell in notebook.cells for output in cell.get("outputs", [])):
        if output.output_type == "stream":  # of processes that a guide starts
            lines = output.text.splitlines(keepends=True)
            output.text = "".join(line for line in lines if not re.match(NOISE, line))
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"  # random ids and times would be differences without a meaning
        cell.metadata = {}
    notebook.metadata = {
        "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
        "language_info": {"name": "python"},
        "script_sha256": script_hash(script),
    }
    nbformat.write(notebook, script.with_suffix(".ipynb"))
    return seconds


def main(arguments: list[str] | None = None) -> int:
    scripts = {script.stem: script for script in sorted(FOLDER.glob("*.py"))}
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("guides", nargs="*", metavar="GUIDE", help="names, such as digits")
    options: Any = parser.parse_args(arguments)
    if unknown := sorted({*options.guides} - {*scripts}):
        parser.error(f"no guide {', '.join(unknown)}. Give some of {', '.join(scripts)}.")
    for name in options.guides or scripts:
        if options.guides or not is_current(scripts[name]):
            print(f"{name}: {execute(scripts[name]):.0f} seconds", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
