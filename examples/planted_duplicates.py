"""How many duplicates are found? Photographs are copied in five ways, and looked for.

    keras-vit embed FOLDER --model FILE --out index
    python examples/planted_duplicates.py --index index --model FILE

Some photographs of the index are put beside it once more: half as large, as a JPEG file of quality
30, mirrored, or cut to 90 or 75 % of their sides at a random place. Prints the part of each kind
that is joined to its original, and how many pairs are found that were not planted, in all
photographs; most of these show the same scene. Takes about two minutes for 200 photographs of
2,250 and ViT-Ti/16 on two free cores. Needs keras3-vit[search].
"""

import argparse
import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image
from study import command_line, to_markdown

from keras_vit import load
from keras_vit.curation import (
    FeatureIndex,
    PhotoMeasures,
    find_duplicates,
    measure_image,
    measure_photos,
)
from keras_vit.data.decode.pillow import decode_with_pillow
from keras_vit.models import ImageModel

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
parser.add_argument("--index", type=Path, required=True, help="what keras-vit embed wrote")
parser.add_argument("--model", type=Path, required=True, help="the model of the index")
parser.add_argument("--photos", type=int, default=200, help="how many are planted in each way")
parser.add_argument("--seed", type=int, default=0, help="which, and where they are cut")

Draw = np.random.Generator


def cut(image: Image.Image, part: float, random: Draw) -> Image.Image:
    """A part of each side, at a random place."""
    width, height = round(part * image.width), round(part * image.height)
    left = int(random.integers(0, image.width - width + 1))
    top = int(random.integers(0, image.height - height + 1))
    return image.crop((left, top, left + width, top + height))


# From an image to another one, and the quality that it is saved with.
KINDS: dict[str, tuple[Callable[[Image.Image, Draw], Image.Image], int]] = {
    "resized to 50 %": (lambda i, r: i.resize((i.width // 2, i.height // 2)), 92),
    "JPEG, quality 30": (lambda i, r: i, 30),
    "mirrored": (lambda i, r: i.transpose(Image.Transpose.FLIP_LEFT_RIGHT), 92),
    "cut to 90 %": (lambda i, r: cut(i, 0.9, r), 92),
    "cut to 75 %": (lambda i, r: cut(i, 0.75, r), 92),
}


def planted(file: Path, kind: str, random: Draw) -> bytes:
    """A photograph in another way, as a JPEG file."""
    change, quality = KINDS[kind]
    buffer = io.BytesIO()
    image = Image.fromarray(decode_with_pillow(file.read_bytes()))
    change(image, random).save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def with_planted(
    index: FeatureIndex,
    measures: PhotoMeasures,
    model: ImageModel,
    kind: str,
    count: int,
    seed: int,
) -> tuple[FeatureIndex, PhotoMeasures, np.ndarray]:
    """The index and its measures with so many planted rows at their end, and the originals'."""
    random = np.random.default_rng(seed)
    rows = np.sort(random.permutation(len(index))[:count])
    contents = [planted(index.path(row), kind, random) for row in rows.tolist()]
    encoder = index.encoder(model, batch_size=20)
    features = [
        encoder(np.stack([encoder.prepare(each) for each in contents[start : start + 20]]))
        for start in range(0, len(contents), 20)
    ]
    more = [measure_image(decode_with_pillow(each)) for each in contents]
    together = replace(
        index,
        features=np.concatenate([index.rows(), *features]),
        sums=(*index.sums, *(f"planted {i}" for i in range(len(rows)))),
        files=(*index.files, *(f"planted {i}" for i in range(len(rows)))),
    )
    arrays = {
        name: np.concatenate(
            [getattr(measures, name), np.array(values, getattr(measures, name).dtype)]
        )
        for name, values in zip(more[0]._fields, zip(*more, strict=True), strict=True)
    }
    return together, PhotoMeasures(**arrays, failed=measures.failed), rows


def main() -> None:
    options = parser.parse_args()
    index, model = FeatureIndex.open(options.index), load(options.model)
    measures = measure_photos(index)
    alone = find_duplicates(index, measures)
    table = []
    for kind in KINDS:
        together, both, rows = with_planted(
            index, measures, model, kind, options.photos, options.seed
        )
        pairs = set(map(tuple, find_duplicates(together, both).pairs.tolist()))
        hits = [(row, len(index) + i) in pairs for i, row in enumerate(rows.tolist())]
        table.append({"kind": kind, "found": float(np.mean(hits))})
        print(f"{kind}: {np.mean(hits):.1%}", flush=True)
    print(f"\n`{command_line()}`, {options.photos} of {len(index):,} photographs:\n")
    print(to_markdown(table, {"planted": "{kind}", "found": "{found:.1%}"}))
    print(f"\nnot planted: {len(alone.pairs)} pairs, {alone.is_copy.sum()} of the same bytes")


if __name__ == "__main__":
    main()
