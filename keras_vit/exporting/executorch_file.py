"""ExecuTorch (`.pte`): PyTorch's runtime for phones and boards, its XNNPACK kernels inside."""

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.exporting.contract import Contract, Run, append, read_appended
from keras_vit.exporting.proof import add_to_zip, read_from_zip
from keras_vit.models import ImageModel
from keras_vit.models.answers import named_answers

# Of its `_clone_dim_order`: a kernel of one channel has two orders, and it takes neither of them.
_ONE_CHANNEL = (
    ". ExecuTorch does not run convolutions on one channel, whose order in memory is ambiguous: "
    "give another format, such as 'litert', or a model of three channels."
)


def write(
    model: ImageModel, path: Path, contract: Contract, calibration: np.ndarray | None = None
) -> None:
    """Writes a `.pte` file by `torch.export` and ExecuTorch. Runs where Keras is on torch.

    Its method `forward` takes one image, float32 `(1, height, width, channels)` in the range of
    `Contract`'s images, and returns the contract's outputs in their order. A batch of any size
    would keep XNNPACK from planning its memory. int8 is that of dense layers: weights with a scale
    per output, and inputs quantized image by image.
    """
    import torch

    with quietly():
        from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
        from executorch.exir import to_edge_transform_and_lower

    example = torch.zeros((1, *contract.image_size, contract.channels))
    with torch.no_grad(), quietly():
        program = torch.export.export(answers_module(model, contract), (example,))
        if contract.quantize:
            program = _quantized(program, example)
        lowered = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])
        path.write_bytes(lowered.to_executorch().buffer)
    append(path, contract)


def answers_module(model: ImageModel, contract: Contract) -> Any:
    """Return a torch module from images to the contract's outputs in their order."""
    import torch

    class Answers(torch.nn.Module):
        # As in `torch_file`: the graph holds the weights as constants.
        def forward(self, images: Any) -> tuple[Any, ...]:
            named = named_answers(model, model(images, training=False), contract.top_k)
            return tuple(named[name] for name in contract.returned)

    return Answers()


def _quantized(program: Any, example: Any) -> Any:
    import torch
    from executorch.backends.xnnpack.quantizer import xnnpack_quantizer as xnnpack
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    config = xnnpack.get_symmetric_quantization_config(is_per_channel=True, is_dynamic=True)
    quantizer = xnnpack.XNNPACKQuantizer()
    quantizer.set_operator_type(torch.ops.aten.linear.default, config)
    prepared = prepare_pt2e(program.module(), quantizer)
    prepared(example)
    module = convert_pt2e(prepared)
    for node in reversed([*module.graph.nodes]):
        if node.op in ("call_function", "get_attr") and not node.users:  # or assertions keep them
            module.graph.erase_node(node)
    module.recompile()
    used = {node.target for node in module.graph.nodes if node.op == "get_attr"}
    for name in {*dict(module.named_buffers())} - used:
        delattr(module, name)  # weights in float32, which would be written, too
    return torch.export.export(module, (example,))


# As of a LiteRT file, in a zip archive behind the program's bytes, which its header counts. The
# proof stands behind the contract, and its sum is of all before it.
read_contract = read_appended
add_proof, read_proof = add_to_zip, read_from_zip


@contextmanager
def quietly() -> Iterator[None]:
    """Without what ExecuTorch prints of processors and libraries that are not here; errors stay."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), redirect_stderr(StringIO()):
            warnings.simplefilter("ignore")  # of classes of torch that its own compiler uses
            yield
    finally:
        logging.disable(before)


def runner(path: Path, outputs: Sequence[str], dtype: str = "uint8") -> Run:
    """Return a function from pixels of a dtype to the named outputs."""
    import torch

    names = read_contract(path).returned
    with quietly():
        from executorch.runtime import Runtime, Verification

        program = Runtime.get().load_program(path, verification=Verification.InternalConsistency)
        method = program.load_method("forward")
    size = tuple(method.metadata.input_tensor_meta(0).sizes())[1:]

    def run(images: np.ndarray) -> list[np.ndarray]:
        assert program  # what owns the method's memory
        if images.shape[1:] != size:
            raise ValueError(f"images {images.shape} must be (batch, {', '.join(map(str, size))})")
        rows = []
        for image in images.astype("float32"):
            try:
                answers = method.execute([torch.from_numpy(image[None])])
            except RuntimeError as error:
                raise RuntimeError(f"{error}{_ONE_CHANNEL if size[-1] == 1 else ''}") from error
            rows.append(dict(zip(names, [np.array(answer) for answer in answers], strict=True)))
        return [np.concatenate([row[output] for row in rows]) for output in outputs]

    return run
