"""Executes the guides and stores their outputs: `make guides`, `make guides GUIDES=digits`.

    python -m docs.tools.guides            # those whose code has changed; new text alone is copied
    python -m docs.tools.guides digits     # these, in any case

A guide is a script `docs/guides/NAME.py` in the percent format: `# %%` begins a cell of code,
`# %% [markdown]` one of text; `# %% tags=["hide-input"]` folds preparations, so that the first
result is on the first screen. This writes `docs/guides/NAME.ipynb`, which is committed: the site
shows it without executing it, and a test compares the hash of the script in it.
"""

import argparse
import hashlib
import re
import sys
import time
from pathlib import Path
from typing import Any

from keras_vit_cli.quiet import NOISE

FOLDER = Path(__file__).resolve().parents[1] / "guides"
LONGEST = 3600  # seconds per cell


def script_hash(script: Path) -> str:
    """What a notebook stores of the script that it was made from."""
    return hashlib.sha256(script.read_bytes()).hexdigest()


def is_current(script: Path) -> bool:
    """Whether the committed outputs are those of the script as it is."""
    notebook = script.with_suffix(".ipynb")
    return notebook.exists() and script_hash(script) in notebook.read_text("utf-8")


def update_text(script: Path) -> bool:
    """Writes a guide's new text beside its outputs, if the code of every cell is as it was.

    Returns whether it was, so that the guide does not have to be executed. Blank lines around a
    cell are not code: a notebook that has them loses them.
    """
    import nbformat

    if not script.with_suffix(".ipynb").exists():
        return False
    new = _read(script)
    old = nbformat.read(script.with_suffix(".ipynb"), as_version=4)
    cells, executed = ([c for c in n.cells if c.cell_type == "code"] for n in (new, old))
    if [cell.source for cell in cells] != [cell.source.strip("\n") for cell in executed]:
        return False
    for cell, earlier in zip(cells, executed, strict=True):
        cell.outputs, cell.execution_count = earlier.outputs, earlier.execution_count
    _write(new, script)
    return True


def execute(script: Path) -> float:
    """Runs a guide from its first cell to its last, writes the notebook, and returns the seconds.

    Raises:
        CellExecutionError: A cell failed; the earlier notebook stays.
    """
    from nbclient import NotebookClient

    notebook = _read(script)
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
    _write(notebook, script)
    return seconds


def _read(script: Path) -> Any:
    """A guide as a notebook without outputs."""
    import jupytext

    notebook = jupytext.read(script, fmt="py:percent")
    for cell in notebook.cells:  # the formatter puts two blank lines before a definition
        cell.source = cell.source.strip("\n")
    return notebook


def _merge_streams(outputs: list[Any]) -> list[Any]:
    """Outputs in which a text that was printed in pieces is one.

    The site joins pieces as well, and drops the blank lines where one ends.
    """
    merged: list[Any] = []
    for output in outputs:
        is_text = output.output_type == "stream"
        if is_text and merged and merged[-1].get("name") == output.name:
            merged[-1].text += output.text
        else:
            merged.append(output)
    return merged


def _write(notebook: Any, script: Path) -> None:
    import nbformat

    for number, cell in enumerate(notebook.cells):
        if cell.cell_type == "code":
            cell.outputs = _merge_streams(cell.outputs)
        cell.id = f"cell-{number}"  # random ids and times would be differences without a meaning
        cell.metadata = {name: tags for name, tags in cell.metadata.items() if name == "tags"}
    notebook.metadata = {
        "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
        "language_info": {"name": "python"},
        "script_sha256": script_hash(script),
    }
    nbformat.write(notebook, script.with_suffix(".ipynb"))


def main(arguments: list[str] | None = None) -> int:
    scripts = {script.stem: script for script in sorted(FOLDER.glob("*.py"))}
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("guides", nargs="*", metavar="GUIDE", help="names, such as digits")
    options: Any = parser.parse_args(arguments)
    if unknown := sorted({*options.guides} - {*scripts}):
        parser.error(f"no guide {', '.join(unknown)}. Give some of {', '.join(scripts)}.")
    for name in options.guides or scripts:
        if not options.guides and update_text(scripts[name]):
            continue
        print(f"{name}: {execute(scripts[name]):.0f} seconds", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
