"""Measures everything that `docs/performance.md` shows, and writes the page.

`python -m benchmarks performance --run runs/flowers --data FLOWERS`: one and a half hours on two
cores, one measurement after the other; what `docs/performance` has already is not measured again
(delete a folder, or name it with `--only`). `--page` only writes the page and its plots.
"""

import argparse
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from benchmarks import _page

PAGE = Path(__file__).parent.parent / "docs" / "performance.md"

# From a measurement to the arguments of `compare`. Contestants that do not fit into 24 GiB at once
# run alone; torch.compile's are left out where there is a minute's compiling for each.
KERAS = ["keras_vit", "keras_hub", "limit"]
TF, JAX, TORCH = (f"keras_vit/{backend}" for backend in ("tensorflow", "jax", "torch"))
HALF = ":dtype=bfloat16"


def _contest(*contestants: str) -> list[str]:
    return ["--contestants", *contestants]


MEASUREMENTS: dict[str, list[str]] = {
    "s16": ["--model", "ViT-S/16", "--seconds", "1"],
    "limit": [
        *("--model", "ViT-S/16", "--rounds", "7", "--seconds", "2"),
        *_contest(TF, "keras_hub/tensorflow", "timm/compiled", "limit"),
    ],
    "s16_dropout": [
        *("--model", "ViT-S/16", "--tasks", "training", "--dropout", "0.1", "--seconds", "1"),
        *_contest(*KERAS),
    ],
    "s16_bfloat16": [
        *("--model", "ViT-S/16", "--seconds", "1"),
        *_contest(*(name + extra for name in (TF, JAX, TORCH) for extra in ("", HALF)), "limit"),
    ],
    "b16_inference": [
        *("--model", "ViT-B/16", "--tasks", "inference"),
        *_contest(*KERAS, "timm/compiled", "huggingface/compiled", "flax"),
    ],
    "b16_training": [
        *("--model", "ViT-B/16", "--tasks", "training", "--seconds", "1"),
        *_contest(*KERAS, "timm/compiled"),
    ],
    **{
        f"b16_dropout_{backend}": [
            *("--model", "ViT-B/16", "--tasks", "training", "--dropout", "0.1", "--seconds", "1"),
            *_contest(f"keras_vit/{backend}", f"keras_hub/{backend}"),
        ]
        for backend in ("tensorflow", "jax", "torch")
    },
    "batch": [
        *("--model", "ViT-Ti/16"),
        *_contest(*(name + extra for name in (TF, JAX, TORCH) for extra in ("", ":batch_size=1"))),
        *(f"{who}:batch_size=32" for who in (TF, JAX, TORCH)),
    ],
    "malloc": [
        *("--model", "ViT-S/16", "--batch-size", "32"),
        *_contest(*(name + extra for name in (JAX, TORCH) for extra in ("", ":malloc=default"))),
    ],
    "exported": [
        *("--model", "ViT-S/16", "--tasks", "inference"),
        *_contest(TF, "exported/tensorflow"),
    ],
    "px384": [
        *("--model", "ViT-S/16", "--image-size", "384", "--seconds", "1"),
        *_contest(TF, "keras_hub/tensorflow", "limit/tensorflow"),
    ],
    "patch_dropout": [
        *("--model", "ViT-S/16", "--tasks", "training"),
        *_contest(*(name + extra for name in (TF, TORCH) for extra in ("", ":patch_dropout=0.5"))),
    ],
    "l16_start": [
        *("--model", "ViT-L/16", "--tasks", "training", "--batch-size", "1"),
        *("--alone", "--seconds", "0.1"),
        *_contest("keras_vit", "keras_hub"),
    ],
    "l16_remat": [
        *("--model", "ViT-L/16", "--tasks", "training", "--alone", "--rounds", "3"),
        *("--seconds", "1"),
        *_contest(*(name + extra for name in (TF, JAX) for extra in ("", ":remat=true"))),
    ],
    "l16_remat_sgd": [
        *("--model", "ViT-L/16", "--tasks", "training", "--optimizer", "SGD", "--alone"),
        *("--seconds", "1"),
        *_contest(JAX, JAX + ":remat=true"),
    ],
}

# On one GPU, beside timm in automatic mixed precision, with and without compiling.
GPU = {
    f"gpu_{short}_{task}": [
        *("--model", model, "--tasks", task, "--batch-size", str(batch), "--dtype", "bfloat16"),
        *("--rounds", "3", "--seconds", "1"),
        *_contest(JAX, TORCH, "timm", "limit/torch"),
    ]
    for short, model, task, batch in (
        ("b16", "ViT-B/16", "inference", 256),
        ("b16", "ViT-B/16", "training", 128),
        ("l16", "ViT-L/16", "inference", 128),
        ("l16", "ViT-L/16", "training", 64),
    )
}
MEASUREMENTS |= GPU

# How cost grows around ViT-S/16: on TensorFlow, the fastest, and on torch, whose memory holds what
# a step keeps and next to nothing of a compiler's.
VARIED = {
    "tokens": [f"image_size={size}" for size in (112, 160, 224, 320)],
    "width": [
        f"hidden_dim={width};mlp_dim={4 * width};num_heads={width // 64}"
        for width in (192, 384, 768)
    ],
    "depth": [f"depth={depth}" for depth in (3, 6, 12, 24)],
}
MEASUREMENTS |= {
    f"growth_{what}_{who.partition('/')[2]}": [
        *("--model", "ViT-S/16", "--seconds", "1"),
        *_contest(*(f"{who}:{options}" for options in sizes)),
    ]
    for who in (TF, TORCH)
    for what, sizes in VARIED.items()
}

# In bfloat16 the model's answers differ by backend, as torch alone computes in it.
MERGING = {f"merging_{backend}": backend for backend in ("tensorflow", "torch")}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks performance",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [*MEASUREMENTS, "costs", "tpu", *MERGING]
    parser.add_argument("--only", nargs="+", choices=names, help="measure these, also again")
    parser.add_argument("--run", type=Path, help="a ViT that `keras-vit train` made, for merging")
    parser.add_argument("--data", help="the data it was trained on")
    parser.add_argument(
        "--page", action="store_true", help="measure nothing, write the page and its plots"
    )
    parser.add_argument("--out", type=Path, default=PAGE, help="the page; figures go beside it")
    options = parser.parse_args(arguments)
    folder = options.out.with_suffix("")
    commands = {name: ["compare", *arguments] for name, arguments in MEASUREMENTS.items()}
    commands |= {"costs": ["costs"], "tpu": ["tpu"]}
    commands |= {name: ["merging", str(options.run), "--data", options.data] for name in MERGING}
    for name in [] if options.page else options.only or names:
        if (folder / name).exists() and not options.only:
            print(f"{name}: measured before")
            continue
        part = folder / f"{name}.partial"
        if name in MERGING and not (options.run and options.data):
            print(f"{name}: not measured; give --run and --data")
            continue
        if name in GPU and not shutil.which("nvidia-smi"):
            print(f"{name}: not measured; there is no GPU")
            continue
        if name == "tpu" and not find_spec("libtpu"):
            print(f"{name}: not compiled; pip install libtpu")
            continue
        print(f"{name}: python -m benchmarks {shlex.join(commands[name])}", flush=True)
        status = subprocess.run(
            [sys.executable, "-m", "benchmarks", *commands[name], "--out", str(part)],
            cwd=PAGE.parent.parent,
            env=os.environ | ({"KERAS_BACKEND": MERGING[name]} if name in MERGING else {}),
            check=False,
        ).returncode
        if status:
            return status
        shutil.rmtree(folder / name, ignore_errors=True)
        part.rename(folder / name)
    options.out.write_text(_page.page(folder, MEASUREMENTS), "utf-8")
    print(f"Written: {options.out}")
    return 0
