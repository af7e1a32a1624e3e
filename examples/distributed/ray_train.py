"""Trains on JAX in the workers of Ray Train.

    pip install 'ray[train]' 'keras3-vit[jax,train]'
    python examples/distributed/ray_train.py --workers 2 --data digits --out runs/digits

Ray starts the workers and watches them; those of a training that failed are started again, and
continue it from its last checkpoint. All machines need the same --out folder.
"""

from __future__ import annotations

import argparse
import os
import socket
from pathlib import Path
from typing import Any


def train(options: dict[str, Any]) -> None:
    """What every worker does; `options` are those of `keras_vit.training.job.Job`."""
    os.environ.setdefault("KERAS_BACKEND", "jax")
    import ray.train

    context = ray.train.get_context()
    rank, workers = context.get_world_rank(), context.get_world_size()
    import keras_vit
    from keras_vit.training.job import Job
    from keras_vit.training.job import train as train_job

    address = agree_on_address(rank)
    keras_vit.distribution.initialize(address, workers, rank)
    out = Path(options["out"])
    resume = out.with_name(f"{out.name}.partial").exists()
    train_job(Job(**{**options, "out": out, "resume": resume}))


def agree_on_address(rank: int) -> str:
    """Host and a free port of worker 0, in every worker."""
    from ray.train.collective import broadcast_from_rank_zero

    address = None
    if rank == 0:
        import ray

        with socket.socket() as free:
            free.bind(("", 0))
            address = f"{ray.util.get_node_ip_address()}:{free.getsockname()[1]}"
    return broadcast_from_rank_zero(address)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2, help="a process per machine")
    parser.add_argument("--gpus", type=int, default=0, help="GPUs of each worker")
    parser.add_argument("--data", default="digits", help="as for keras-vit train")
    parser.add_argument("--out", required=True, help="a folder that all machines see")
    parser.add_argument("--distribution", default="data_parallel", help="as for keras-vit train")
    options = vars(parser.parse_args())
    workers, gpus = options.pop("workers"), options.pop("gpus")
    options["out"] = os.path.abspath(options["out"])

    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.data_parallel_trainer import DataParallelTrainer

    DataParallelTrainer(
        train,
        train_loop_config=options,
        scaling_config=ScalingConfig(
            num_workers=workers,
            use_gpu=gpus > 0,
            resources_per_worker={"GPU": gpus} if gpus else None,
        ),
        run_config=RunConfig(failure_config=FailureConfig(max_failures=3)),
    ).fit()


if __name__ == "__main__":
    main()
