"""Records `visreg.json`: VISReg's loss and its gradient, as lightly and stable-pretraining compute
them in torch, with given slices in place of those that they draw.

    python -m tests.golden.record_visreg LIGHTLY STABLE_PRETRAINING

LIGHTLY is the unpacked wheel lightly==1.6.0; STABLE_PRETRAINING the file
stable_pretraining/methods/visreg.py of rbalestr-lab/stable-pretraining, commit e96c557: the wheel
0.1.8 does not have it yet.
"""

import json
import runpy
import sys
import types
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import torch

FILE = Path(__file__).with_name("visreg.json")
RANDOM = np.random.default_rng(7)
# Three views of five images, far from normal, and seven directions before they have length 1.
PROJECTIONS = (RANDOM.normal(0.3, 1.7, (3, 5, 4)) ** 2).round(3)
DIRECTIONS = RANDOM.normal(size=(4, 7)).round(3)
WEIGHT, NUM_GLOBAL = 0.6, 2


def of_lightly(z: Any) -> Any:
    for name in ("lightly", "lightly.loss", "lightly.utils"):  # without what they import
        sys.modules[name] = package = types.ModuleType(name)
        package.__path__ = [str(Path(sys.argv[1], *name.split(".")))]
    from lightly.loss.visreg_loss import VISRegLoss

    loss = VISRegLoss(lambda_param=WEIGHT, num_slices=7)
    return loss(global_proj=z[:NUM_GLOBAL], local_proj=z[NUM_GLOBAL:])


def of_stable_pretraining(z: Any) -> Any:
    for name in ("timm", "transformers.utils", "stable_pretraining", "stable_pretraining.backbone"):
        sys.modules[name] = MagicMock(Module=object, ModelOutput=object)
    peer = runpy.run_path(sys.argv[2])
    return peer["VISReg"]._compute_loss(z, NUM_GLOBAL, peer["VISRegLoss"](7), WEIGHT)[0]


def recorded(loss: Any) -> dict[str, Any]:
    z = torch.tensor(PROJECTIONS, dtype=torch.float32, requires_grad=True)
    torch.randn = lambda *size, **_: torch.tensor(DIRECTIONS, dtype=torch.float32)  # both draw so
    value = loss(z)
    value.backward()
    return {"loss": value.item(), "gradient": z.grad.flatten().tolist()}


if __name__ == "__main__":
    found = {
        "projections": PROJECTIONS.tolist(),
        "directions": DIRECTIONS.tolist(),
        "arguments": {"weight": WEIGHT, "num_global": NUM_GLOBAL},
        "lightly": recorded(of_lightly),
        "stable-pretraining": recorded(of_stable_pretraining),
    }
    FILE.write_text(json.dumps(found) + "\n")
