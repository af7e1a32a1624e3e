"""Trains on JAX in the workers of Ray Train.

    pip install 'ray[train]' 'keras3-vit[jax,train]'
    python examples/distributed/ray_train.py --workers 2 --gpus 8 --data photos --out runs/photos

Ray starts a worker per machine and watches them; those of a training that failed start again, and
continue it from its last checkpoint. All machines need the data and the --out folder.
"""

from __future__ import annotations

import argparse
import os
import socket
from pathlib import Path
from typing import Any

os.environ["RAY_TRAIN_V2_ENABLED"] = "1"  # before Ray is imported: only it has a JaxTrainer


def train(options: dict[str, Any]) -> None:
    """What every worker does; `options` are those of `keras_vit_cli.train.job.Job`."""
    import keras_vit
    from keras_vit_cli.train.job import Job
    from keras_vit_cli.train.run import train as train_job

    if not options.pop("gpus"):  # Ray connects those with GPUs
        keras_vit.distribution.initialize(*processes())
    out = Path(options["out"])
    resume = out.with_name(f"{out.name}.partial").exists()
    train_job(Job(**{**options, "out": out, "resume": resume}))


def processes() -> tuple[str, int, int]:
    """Host and a free port of worker 0, the number of workers, and that of this one."""
    import ray
    from ray.train.collective import broadcast_from_rank_zero

    context = ray.train.get_context()
    with socket.socket() as free:
        free.bind(("", 0))
        address = f"{ray.util.get_node_ip_address()}:{free.getsockname()[1]}"
    address = broadcast_from_rank_zero(address)
    return address, context.get_world_size(), context.get_world_rank()


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains on JAX in the workers of Ray Train.")
    parser.add_argument("--workers", type=int, default=2, help="one per machine")
    parser.add_argument("--gpus", type=int, default=0, help="GPUs of each worker; 0 for its CPUs")
    parser.add_argument("--data", default="digits", help="as for keras-vit train")
    parser.add_argument("--out", required=True, help="a folder that all machines see")
    parser.add_argument("--epochs", type=int, help="as for keras-vit train")
    parser.add_argument("--distribution", default="data_parallel", help="as for keras-vit train")
    options = vars(parser.parse_args())
    workers, gpus = options.pop("workers"), options["gpus"]
    options["out"] = os.path.abspath(options["out"])

    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.v2.jax import JaxTrainer

    platform = "cuda" if gpus else "cpu"
    JaxTrainer(
        train,
        train_loop_config=options,
        scaling_config=ScalingConfig(
            num_workers=workers,
            use_gpu=gpus > 0,
            resources_per_worker={"GPU": gpus} if gpus else None,
        ),
        run_config=RunConfig(
            failure_config=FailureConfig(max_failures=3),
            worker_runtime_env={"env_vars": {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": platform}},
        ),
    ).fit()


if __name__ == "__main__":
    main()
