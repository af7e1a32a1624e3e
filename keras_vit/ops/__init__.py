"""The one place that knows which backend Keras runs on: one idea per file."""

from keras_vit.ops.assignment import assigned_rows
from keras_vit.ops.constants import changing_variables, without_gradient
from keras_vit.ops.current_distribution import (
    batches_on_host,
    current_distribution,
    on_devices,
    single_process,
)
from keras_vit.ops.devices import (
    MODEL,
    cut_last_axis,
    is_cut_by_heads,
    layout_of,
    on_all_devices,
)
from keras_vit.ops.gradients import gradients
from keras_vit.ops.hooks import has_hooks
from keras_vit.ops.jax_processes import connect_jax_processes, whole_values
from keras_vit.ops.kernels import (
    fused_attention,
    gelu_kernel,
    has_fused_attention,
    joins_rows,
    multiply_add,
    multiply_in_float32,
    recompute_derivative,
    writes_in_place,
)
from keras_vit.ops.platform import compiles_per_shape, is_tensorflow, process_on
from keras_vit.ops.processes import (
    current_processes,
    from_all_processes,
    is_first_process,
    process_count,
    rows_of_process,
    same_in_all_processes,
    wait_for_processes,
)
from keras_vit.ops.random import (
    DropoutStrategy,
    dropout_strategy,
    random_int16,
    random_rows,
    random_state,
    set_random_state,
)
from keras_vit.ops.recomputation import remat
from keras_vit.ops.step import on_all_processes
from keras_vit.ops.torch_processes import (
    ProcessParallel,
    connect_torch_processes,
    keras_shares_steps,
    start_from_first_process,
)
from keras_vit.ops.variable_tracking import track_variables_anew
