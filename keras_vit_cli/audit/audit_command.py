"""`keras-vit audit`: what is wrong in a folder of photographs, and lists without it."""

import os
import shlex
import sys

from rich.table import Table
from rich.text import Text

from keras_vit._base.errors import counted, printable
from keras_vit._base.output_folder import OutputFolder
from keras_vit.curation import FeatureIndex
from keras_vit_cli.audit.audit_page import PAGE, write_audit_page
from keras_vit_cli.audit.decisions import (
    LISTINGS,
    TABLE,
    clean,
    find_changes,
    read_decisions,
    write_lists,
)
from keras_vit_cli.audit.findings import COLUMNS, Audit, audit_photos, has_classes
from keras_vit_cli.audit.mask_audit import audit_masks
from keras_vit_cli.embed_command import index_from, is_index, print_made_with
from keras_vit_cli.options.photo_options import AuditOptions
from keras_vit_cli.printing import print_next, print_table, print_text, progress_bar
from keras_vit_cli.search.result_table import write_csv

RESULTS = "audit.csv"


def audit(options: AuditOptions) -> int:
    """Writes the page, the table and the lists; the exit status is 1 where files are unreadable.

    Raises:
        DamagedIndexError, IndexMismatchError: See `keras_vit.curation.embed`.
        FileExistsError: See `OutputFolder.check`.
        FileNotFoundError: The images of an index are gone.
        ValueError: There is no model, or a decision cannot be read.
    """
    if options.masks is not None:
        return audit_masks(options)
    out = options.out
    has_index = is_index(options.photos)
    is_folder = options.photos.is_dir() and not has_index
    output = OutputFolder(
        out,
        "audit",
        results=(PAGE, RESULTS, TABLE, *LISTINGS),
        protected=[options.photos] if is_folder or has_index else [],
    )
    output.check(overwrite=options.overwrite)
    index = _index(options, has_index)
    if has_index and options.decisions is None:
        print_made_with(index.info["model"], index.info.get("made_with"))
    changes = find_changes(index)
    decisions = {}
    if options.decisions is not None:
        decisions = read_decisions(options.decisions, index)
    with output.opened(overwrite=options.overwrite) as workspace:
        results = None
        if options.decisions is None:
            with progress_bar() as bar:
                task = bar.add_task("measuring images", total=len(index))
                results = audit_photos(
                    index,
                    options.seed,
                    lambda done: bar.update(task, completed=done),
                    # An index on a disk that cannot be written is audited as well, each time anew.
                    keep=os.access(index.folder, os.W_OK),
                )
            write_csv(workspace / RESULTS, COLUMNS, results.table())
            # Links lead from where the page will stand.
            write_audit_page(workspace / PAGE, output.place, index, results, options.most)
        cleaned = clean(index, decisions, {*changes.gone, *changes.changed})
        remarks = [*changes.remarks(index), *write_lists(workspace, index, cleaned)]
        output.finish()
    output.publish(print_text)
    if results is not None:
        _print_findings(results)
    left_out = f", {counted(cleaned.copies, 'copy', 'copies')} left out" if cleaned.copies else ""
    if cleaned.unused:
        left_out += f", {cleaned.unused:,} of no split or class"
    decided = ""
    if options.decisions is not None:
        decided = f": {cleaned.dropped:,} dropped, {cleaned.relabeled:,} with another label"
    print_text(
        f"written to {out}: {counted(len(cleaned.rows), 'image')} in {TABLE}{decided}{left_out}"
    )
    for remark in remarks:
        print(f"keras-vit: {printable(remark)}", file=sys.stderr)
    if results is None:
        print_next("train", "--data", index.photos, "--labels", out / TABLE, *_task_words(index))
        return 0
    print_text(f"next: open {shlex.quote(str(out / PAGE))} in a browser, decide, and")
    source = options.photos if has_index else index.folder
    print_next("audit", source, "--decisions", "decisions.csv", "--out", "cleaned")
    return 1 if results.unreadable else 0


def _task_words(index: FeatureIndex) -> list[str]:
    """Return the task of classes for `train`, which may take their names for numbers or lists."""
    is_known = index.class_names and has_classes(index)
    return ["--task", "classification"] if is_known else []


def _index(options: AuditOptions, has_index: bool) -> FeatureIndex:
    photos = options.photos
    if options.decisions is not None and not has_index:
        if options.index is None:
            raise ValueError(
                f"{printable(photos)} is not an index of features: decisions are applied to the "
                "index that the page was made of, as keras-vit audit printed it."
            )
        return FeatureIndex.open(options.index)
    return index_from(photos, options.model, options.index, options.out)


def _print_findings(results: Audit) -> None:
    table = Table("problem", "findings")
    table.columns[1].justify = "right"
    for problem in results.problems:
        table.add_row(problem.name, Text(f"{len(problem.findings):,}"))
    if results.unreadable:
        table.add_row("unreadable", f"{len(results.unreadable):,}")
    if table.row_count:
        print_table(table)
    else:
        print_text("nothing was found")
    if results.skipped:
        print_text(results.skipped)
