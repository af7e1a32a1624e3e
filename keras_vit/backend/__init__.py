"""The one place that knows which backend Keras runs on: one idea per file."""

from keras_vit.backend.compiled_step import compile_step, tpu_devices
from keras_vit.backend.devices import (
    MODEL,
    batches_on_devices,
    batches_on_host,
    check_placement,
    current_distribution,
    cut_last_axis,
    is_cut_by_heads,
    layout_of,
    on_all_devices,
    on_devices,
)
from keras_vit.backend.guarded_step import guard_step, synchronize
from keras_vit.backend.kernels import (
    fused_attention,
    has_fused_attention,
    has_gelu_kernel,
    joins_rows,
    multiply_add,
    multiply_in_float32,
    recompute_derivative,
)
from keras_vit.backend.platform import is_tensorflow, tensorflow_process
from keras_vit.backend.random import (
    DropoutStrategy,
    dropout_strategy,
    random_int16,
    random_state,
    set_random_state,
)
from keras_vit.backend.rematerialization import remat
from keras_vit.backend.torch_processes import (
    ProcessParallel,
    initialize_processes,
    is_first_process,
    join_processes,
    keras_distributes_torch,
    on_all_processes,
    process_count,
    process_rank,
    random_rows_along,
    same_in_all_processes,
    wait_for_processes,
)
from keras_vit.backend.two_pass_step import two_pass_step
from keras_vit.backend.variables import track_variables_anew
from keras_vit.backend.xla import compiled_by_xla, xla_pays

__all__ = [
    "MODEL",
    "DropoutStrategy",
    "ProcessParallel",
    "batches_on_devices",
    "batches_on_host",
    "check_placement",
    "compile_step",
    "compiled_by_xla",
    "current_distribution",
    "cut_last_axis",
    "dropout_strategy",
    "fused_attention",
    "guard_step",
    "has_fused_attention",
    "has_gelu_kernel",
    "initialize_processes",
    "is_cut_by_heads",
    "is_first_process",
    "is_tensorflow",
    "join_processes",
    "joins_rows",
    "keras_distributes_torch",
    "layout_of",
    "multiply_add",
    "multiply_in_float32",
    "on_all_devices",
    "on_all_processes",
    "on_devices",
    "process_count",
    "process_rank",
    "random_int16",
    "random_rows_along",
    "random_state",
    "recompute_derivative",
    "remat",
    "same_in_all_processes",
    "set_random_state",
    "synchronize",
    "tensorflow_process",
    "tpu_devices",
    "track_variables_anew",
    "two_pass_step",
    "wait_for_processes",
    "xla_pays",
]
