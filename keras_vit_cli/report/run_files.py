"""The files of a report: `report.json`, the pages `report.md` and `.html`, and plots."""

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt

from keras_vit._base.files import write_bytes, write_text
from keras_vit_cli.page_parts import in_base64, page_head, sha256_source, template
from keras_vit_cli.report.report_page import report_page
from keras_vit_cli.report.results import Results
from keras_vit_cli.report.run_plots import draw_curves, save_figure


def write_report(
    folder: str | Path,
    results: Results,
    facts: Mapping[str, Any],
    *,
    history: Mapping[str, Sequence[float]] | None = None,
    config: Mapping[str, Any] | None = None,
    name: str | None = None,
    run: str | Path | None = None,
) -> None:
    """Writes `report.json`, `report.md`, their plots, and `report.html`, which has all in one.

    Args:
        facts: Further results of the run, as JSON accepts them; they go to `report.json` as they
            are, and the keys that `report_page` knows to the page.
        history: `History.history` of `fit`, for the plot `curves.png`.
        config: What made the model, for the page: `command`, `job`, `recipe`, `versions`.
        name: Name of the model; by default that of the run's folder.
        run: The final folder of the run, to which the page's commands refer; by default `folder`.

    Raises:
        ValueError: A score or a value of the history is NaN or infinite.
        OSError: A file cannot be written; the error names it.
    """
    folder, run = Path(folder), Path(folder if run is None else run)
    history = dict(history or {})
    _check_history(history)
    folder.mkdir(parents=True, exist_ok=True)
    plots = dict(results.plots)
    if history:
        plots["curves.png"] = partial(draw_curves, history)
    epochs = max(map(len, history.values()), default=0)
    shown = {"epochs": epochs, "note_of_best": note_of_best(folder, facts), **facts}
    page = report_page(name or run.resolve().name, results, shown, config, tuple(plots), run)
    write_files(folder, page, {**results.record, **facts, "history": history}, plots)


def write_files(
    folder: Path, page: str, record: Mapping[str, Any], plots: Mapping[str, Callable[[], Any]]
) -> None:
    """Writes the page in Markdown and HTML, the record, and the plots by their file names."""
    for file, draw in plots.items():
        save_figure(draw(), folder / file)
    text = json.dumps(record, indent=2, ensure_ascii=False, allow_nan=False)
    # A file name may hold bytes that are not UTF-8: JSON's escapes preserve them.
    write_bytes(folder / "report.json", text.encode("utf-8", "backslashreplace"))
    write_text(folder / "report.md", page)
    write_text(folder / "report.html", _html(page, folder, plots))


def _html(page: str, folder: Path, plots: Collection[str]) -> str:
    """Return a report in Markdown as a page that needs no other file and requests none.

    HTML within it is text, and images besides the plots are left out.
    """
    # As GitHub reads `report.md`, without HTML; Keras brings the parser, by rich.
    reader = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = reader.parse(page)
    inner = [child for token in tokens for child in token.children or ()]
    for image in (token for token in inner if token.type == "image"):
        if image.attrs["src"] in plots:
            content = (folder / str(image.attrs["src"])).read_bytes()
            image.attrs["src"] = f"data:image/png;base64,{in_base64(content)}"
        else:
            image.attrs["src"] = "data:,"
    html = template("report/report.html")
    # The text of the first heading, for the name of the window.
    title = escape("".join(child.content for child in tokens[1].children or ()))
    return html.substitute(
        head=page_head("report", title, sha256_source(html.template, "script")),
        body=reader.renderer.render(tokens, reader.options, {}),
    )


def note_of_best(folder: Path, facts: Mapping[str, Any]) -> str:
    """Return what `best.keras` lacks that was fitted after training; "" if it lacks nothing."""
    if not {"held_out", "calibrated_on"} & facts.keys() or not (folder / "best.keras").is_file():
        return ""
    return (
        "best.keras is the model of the best epoch as training left it: the temperature, "
        "thresholds, prediction sets or intervals and the novelty are in model.keras alone"
    )


def _check_history(history: Mapping[str, Sequence[float]]) -> None:
    for name, values in history.items():
        for epoch, value in enumerate(values, 1):
            if not math.isfinite(value):
                raise ValueError(
                    f"{name} is {value} in epoch {epoch}: the training diverged. Train again with "
                    "a lower learning rate."
                )
