"""`keras-vit predict`: what a model answers for images, as a table or for programs."""

import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.table import Table
from rich.text import Text

from keras_vit._base.errors import counted, printable
from keras_vit.data.sources.other_formats import shown_left_out
from keras_vit.evaluation.answer_row import NOT_FINITE, Row, is_finite, name_of
from keras_vit.evaluation.prediction import predict_files
from keras_vit_cli.model_files import open_classifier
from keras_vit_cli.options.predict import PredictOptions
from keras_vit_cli.predict.answer_files import (
    Write,
    answered,
    in_groups,
    line_writer,
    parquet_writer,
)
from keras_vit_cli.predict.image_paths import image_paths, is_one_file
from keras_vit_cli.predict.map_files import check_maps, write_maps
from keras_vit_cli.predict.schema import AnySchema, Schema, SchemaOfHeads, row_of_head, schema_of
from keras_vit_cli.printing import print_table, print_text, progress_bar
from keras_vit_cli.ray_engine import name_for_ray, paths_for_ray, predict_on_ray

# Images in one table: the columns of a table are as wide as its widest cell, which has to wait for
# all of its rows.
TABLE_IMAGES = 100


def predict(options: PredictOptions) -> int:
    """Prints or writes the answer for each file; returns 1 where one does not have any.

    Raises:
        ValueError: `files` stand for no image, or `out` holds something else.
        FileExistsError: `out` is there, and `resume` is False.
        ImportError: The format needs a package that is not installed.
    """
    out = options.out
    if out is not None and out.exists() and not options.resume:
        more = " --resume to go on with it," if options.format != "parquet" else ""
        raise FileExistsError(f"{printable(out)} exists. Give{more} another --out, or delete it.")
    left_out: Counter[str] = Counter()
    is_here = options.ray is None
    find, name = (image_paths, name_of) if is_here else (paths_for_ray, name_for_ray)
    paths = find(options.files, left_out)
    model = open_classifier(options.model, options.decoder, options.views, several=True)
    schema = schema_of(model, options.top)
    tasks = {name: each.task for name, each in _heads(schema)}
    if options.maps is not None:
        check_maps(options.maps, tasks, options.resume)
    done = None
    if out is not None and options.resume:
        done = answered(out, options.format, schema)
        _check_same_model(options, model, schema, done.last)
        paths = (path for path in paths if name(path) not in done)
    answers = _predicted(options, model, paths)

    end = None if done is None else done.end
    count, unread, infinite, failed = 0, 0, 0, ""
    # Files that are counted only as they are found do not have a total.
    total = len(options.files) if all(map(is_one_file, options.files)) else None
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    began, on_terminal = time.monotonic(), out is None and sys.stdout.isatty()  # with the answers
    with _writer(options, schema, end) as write, progress_bar(*columns, off=on_terminal) as bar:
        task = bar.add_task("images", total=total)
        while batch := list(islice(answers, options.batch_size)):
            if options.maps is not None:  # first: what has a row is not predicted again
                write_maps(options.maps, tasks, batch, options.resume)
            write([schema.row(name(file), answer) for file, answer in batch])
            count += len(batch)
            unread += sum(isinstance(answer, str) for _, answer in batch)
            infinite += sum(not isinstance(x, str) and not is_finite(x) for _, x in batch)
            failed = _without_answer(unread, infinite)
            text = f"images, {count / (time.monotonic() - began):.1f}/s{failed}"
            bar.update(task, advance=len(batch), description=text)
    if out is not None:
        earlier = f", besides {len(done):,} that were there" if done else ""
        print_text(f"written to {out}: {counted(count, 'image')}{failed}{earlier}")
    if left_out:
        print(f"keras-vit: left out {shown_left_out(left_out)}", file=sys.stderr)
    if infinite:
        reason = (
            f"{printable(options.model)} predicts NaN or infinity for {infinite:,} of "
            f"{counted(count, 'image')}: its weights are damaged, or its training diverged. Train "
            "it again, or take another file."
        )
        print(f"keras-vit: {reason}", file=sys.stderr)
    return 1 if failed else 0


def _predicted(options: PredictOptions, model: Any, files: Iterable[str | Path]) -> Iterator[Any]:
    """Yield each file with the answer to it, or the reason why there is none."""
    batch, most = options.batch_size, options.max_pixels
    elsewhere = None if options.ray is None else predict_on_ray(options)
    return predict_files(model, files, batch, most, options.windows, elsewhere)


def _without_answer(unread: int, infinite: int) -> str:
    """Return how many images do not have an answer, as the end of a line."""
    counts = {"cannot be read": unread, "with an answer that is not finite": infinite}
    return "".join(f", {count:,} {what}" for what, count in counts.items() if count)


def _heads(schema: AnySchema) -> Iterable[tuple[str, Schema]]:
    """Return the schema of each head by its name; of a model with one head, that of the model."""
    return schema.heads.items() if isinstance(schema, SchemaOfHeads) else [("", schema)]


def _check_same_model(
    options: PredictOptions, model: Any, schema: AnySchema, last: Row | None
) -> None:
    """Predicts the last answered file again: answers of two models do not belong in one file."""
    if last is None:
        return
    ((_, answer),) = _predicted(replace(options, batch_size=1), model, [last["file"]])
    if not isinstance(answer, str) and not schema.agrees(last, answer):
        raise ValueError(
            f"{printable(str(options.out))} has another answer for {printable(last['file'])} than "
            f"{printable(options.model)} gives: --resume goes on with the same model, --decoder, "
            "--views and --windows. Give another --out."
        )


def _writer(
    options: PredictOptions, schema: AnySchema, end: int | None
) -> AbstractContextManager[Write]:
    if options.format == "table":
        return in_groups(partial(_print_tables, schema), TABLE_IMAGES)
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
    if options.format == "parquet":
        assert options.out is not None  # `check` has seen to it
        return parquet_writer(options.out, schema.example)
    return line_writer(options.out, options.format, schema, end)


def _print_tables(schema: AnySchema, rows: Sequence[Row]) -> None:
    for name, each in _heads(schema):
        print_table(_table(each, [row_of_head(r, name) for r in rows], name or "image"))


def _table(schema: Schema, rows: Sequence[Row], title: str) -> Table:
    """Make a table with a line per name; an image's first line has its file and what is decided."""
    keys = list(dict.fromkeys(key for row in schema.example["predictions"] for key in row))
    table = Table(title, *schema.decided, *keys)
    for row in rows:
        name = Text(printable(row["file"]))  # plain strings would be markup
        if row["error"] is not None:
            cause = "" if row["error"].startswith(NOT_FINITE) else "cannot be read: "
            table.add_row(name, Text(printable(cause + row["error"])), style="red")
        for i, prediction in enumerate(row["predictions"] if row["error"] is None else ()):
            decided = [_text(key, row[key]) if i == 0 else "" for key in schema.decided]
            cells = (_text(key, prediction.get(key, "")) for key in keys)
            table.add_row(name if i == 0 else "", *decided, *cells)
        table.add_section()
    return table


def _text(key: str, value: Any) -> Text:
    if isinstance(value, bool):
        return Text("yes" if value else "no")
    if isinstance(value, float):
        return Text(
            f"{value:.4g}" if key in ("value", "low", "high", "novelty") else f"{value:.2%}"
        )
    return Text(printable(", ".join(value) if isinstance(value, list) else value))
