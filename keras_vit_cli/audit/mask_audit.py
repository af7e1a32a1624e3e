"""`keras-vit audit PHOTOS --masks MASKS`: masks that disagree with their photographs, on a page."""

import shlex
from collections.abc import Iterator
from typing import Any

import numpy as np
from PIL import Image

from keras_vit import data
from keras_vit._base.errors import counted, printable
from keras_vit._base.output_folder import OutputFolder
from keras_vit.curation import MaskErrors, find_mask_errors
from keras_vit.data.preprocessing import evaluation_mask
from keras_vit.data.sources.splits import IndexedSplit
from keras_vit.evaluation.answer_row import name_of
from keras_vit.evaluation.shown_images import images_at
from keras_vit.evaluation.unseen_images import seen_images_of
from keras_vit.exporting import load_classifier
from keras_vit.models import ImageModel
from keras_vit.tasks.pixel_losses import IGNORED
from keras_vit_cli.embed_command import print_made_with
from keras_vit_cli.options.photo_options import AuditOptions
from keras_vit_cli.page_parts import jpeg_uri
from keras_vit_cli.printing import print_text
from keras_vit_cli.report.overlays import ClassPainter
from keras_vit_cli.search.result_page import SIDE, Card, Section, write_result_page
from keras_vit_cli.search.result_table import write_csv

PAGE, TABLE = "index.html", "masks.csv"
COLUMNS = ("file", "disagreement", "part_wrong", "labeled", "rather")
_NOTE = (
    "First the photograph under its mask, then what its features speak for, with stripes where "
    "they contradict the mask: by linear probes of the patches of other photographs. The largest "
    "and surest contradictions come first; borders, and what is smaller than a patch, are not "
    "judged."
)


def audit_masks(options: AuditOptions) -> int:
    """Write the page and the table of masks that are probably wrong.

    Raises:
        FileExistsError: See `OutputFolder.check`.
        ValueError: There is no model of patches, an option is of another audit, or the masks do not
            fit the photographs.
    """
    for name in ("decisions", "index"):
        if getattr(options, name) is not None:
            raise ValueError(f"--{name} is for labels of images, not for --masks: leave it out.")
    if options.model is None:
        raise ValueError(
            "--masks needs the --model that sees the photographs, such as the folder of a training "
            "run, or ViT-S/16:augreg_in21k."
        )
    assert options.masks is not None
    protected = [options.photos, options.masks]
    output = OutputFolder(options.out, "audit", results=(PAGE, TABLE), protected=protected)
    output.check(overwrite=options.overwrite)
    model = load_classifier(options.model)
    if not isinstance(model, ImageModel):
        raise ValueError(f"{printable(options.model)} is an exported file, without features.")
    splits = data.load(options.photos, labels=options.masks, task="segmentation", val_fraction=None)
    parts = [splits[name] for name in splits]
    if len(parts) != 1:
        raise ValueError(
            f"{printable(options.photos)} has {', '.join(splits)}: audit one of these "
            "folders, with its folder of masks."
        )
    seen = seen_images_of(model, options.model)
    if seen is not None and isinstance(parts[0], IndexedSplit):
        print_made_with(model.name, seen.used_among(parts[0].digests()))
    errors = find_mask_errors(model, parts[0], seed=options.seed)
    with output.opened(overwrite=options.overwrite) as workspace:
        suspects = [int(i) for i in errors.order if errors.disagreement[i] > 0]
        rows = [_row(errors, parts[0], i) for i in errors.order]
        write_csv(workspace / TABLE, COLUMNS, rows)
        cards = list(_cards(errors, parts[0], suspects[: options.most]))
        title = f"Masks of {options.photos.name} that may be wrong"
        masks = f"{counted(len(suspects), 'mask')} of {len(rows):,}"
        count = f"{masks} with regions that are probably wrong"
        section = Section(title, _NOTE, cards)
        write_result_page(workspace / PAGE, title, f"{count}.", [section], {})
        output.finish()
    output.publish(print_text)
    print_text(f"{count}\nwritten to {options.out}: {PAGE}, {TABLE}")
    print_text(f"next: open {shlex.quote(str(options.out / PAGE))} in a browser")
    return 0


def _row(errors: MaskErrors, split: Any, i: int) -> tuple[Any, ...]:
    labeled, rather = _most_wrong(errors, split, i)
    score, part = errors.disagreement[i], errors.wrong[i].mean()
    return name_of(split.files[i]), round(float(score), 6), round(float(part), 6), labeled, rather


def _most_wrong(errors: MaskErrors, split: Any, i: int) -> tuple[str, str]:
    """Return which class is most often labeled for which other one; empty where none is."""
    wrong, size = errors.wrong[i], split.task.size
    if not wrong.any():
        return "", ""
    pairs = errors.labels[i][wrong] * size + errors.suggested[i][wrong]
    labeled, rather = divmod(int(np.bincount(pairs).argmax()), size)
    return split.task.shown_names[labeled], split.task.shown_names[rather]


def _cards(errors: MaskErrors, split: Any, rows: list[int]) -> Iterator[Card]:
    """Yield a card per image: its mask, and what its features speak for."""
    painter = ClassPainter(split.task)
    for i in rows:
        (image,) = images_at(split, [i], largest=2 * SIDE)
        maps = (split.label_map(i), errors.wrong[i], errors.suggested[i])
        mask, wrong, suggested = (evaluation_mask(one, image.shape[:2]) for one in maps)
        changed = np.where(wrong & (mask != IGNORED), suggested, mask)
        beside = np.vstack if image.shape[1] > image.shape[0] else np.hstack
        both = jpeg_uri(Image.fromarray(beside(painter.panels(image, [mask, changed]))), quality=80)
        labeled, rather = _most_wrong(errors, split, i)
        facts = f"{errors.wrong[i].mean():.0%} of it, mostly labeled {labeled}, rather {rather}"
        path = split.files[i]
        yield Card(name_of(path), path, facts, both)
