"""A keras.Model whose data are checked and whose steps are guarded; knows no architecture.

What `CompiledModel` overrides of `keras.Model`, and the Keras that makes it unnecessary. Of "none
yet", the file that carries it out has the reason.

override              for                                  unnecessary from Keras
__setattr__           `trainable` thaws layers inside      none yet: `layers/inside.py`
compile               losses that fit outputs; float16     none yet: `compile_checks.py`
get_compile_config    `jit_compile` as it was asked        none yet: saves what it chose
compile_from_config   as `compile`, without warnings       none yet, as `compile`
fit                   data, devices, threads, errors       none yet: the four files of `_run`
evaluate              the same                             none yet, as `fit`
predict               the same                             none yet, as `fit`
train_on_batch        the same                             none yet, as `fit`
test_on_batch         the same                             none yet, as `fit`
predict_on_batch      the same                             none yet, as `fit`
__call__              one thread at a time on JAX          none yet: `turns.py`
call                  batches of any size on devices       none yet: `ops/devices.py`
_symbolic_build       fewer images than labels             none yet: `device_batches.py`
get_metrics_result    torch's processes: all rows in each  3.16, with `ops/torch_processes/`
save                  one process writes; `.h5`            none yet: `saved_file.py`
save_weights          one process writes                   none yet: each process writes
get_weights           whole weights in several processes   none yet: parts are not gathered
set_weights           one thread at a time                 none yet: `turns.py`
load_weights          one thread at a time                 none yet: `turns.py`
make_train_function   weights survive a failed step        none yet: `guarded_step.py`
make_test_function    the same                             none yet: `guarded_step.py`
make_predict_function the same                             none yet: `guarded_step.py`
"""
