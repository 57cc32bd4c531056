"""The network as an ONNX graph, run by ONNX Runtime: the same answers sooner on a CPU, or with int8 weights nearly so.

The graph is one whole pass: ids, positions, who sees whom, and the slots that are asked. Steps from a cache stay with
torch. The file lies beside the weights that it was made from and names their checksum. In int8 the matrices are stored
in 8 bits per column, and what meets them is brought to 8 bits on the way; embeddings, norms and scores stay in 32.

Shapes: B batch, L slots, D width, Q/K query and key slots, M asked slots, V vocabulary.
"""

import logging
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from pmlm.errors import CheckpointError, ConfigError
from pmlm.model.backbone import Inputs, Slots
from pmlm.model.checkpoint import CONFIG, read_config
from pmlm.model.config import ModelConfig
from pmlm.model.heads import LanguageModel

GRAPH = "model.onnx"
Precision = Literal["fp32", "int8"]
POSITIONS = ("absolute", "rotary")
_NAMES = ("ids", "positions", "visible", "rows", "slots")
_WEIGHTS = "weights_sha256"


class _Pass(nn.Module):
    """The forward pass in plain tensors."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids_BL: Tensor, positions_BL: Tensor, visible_BQK: Tensor, rows: Tensor, slots: Tensor) -> Tensor:
        """[1, M, V]; rows and slots are [1, M], as a plain matrix would be made a product that nothing quantises."""
        logits: Tensor = self.model(Inputs(ids_BL, positions_BL, visible_BQK), Slots(rows, slots))
        return logits


class GraphModel(LanguageModel):
    """A loaded network whose whole passes are run by ONNX Runtime; in training it is torch's as ever."""

    def __init__(self, config: ModelConfig, session: Any, precision: Precision) -> None:
        super().__init__(config)
        self.session, self.precision = session, precision

    def forward(self, inputs: Inputs, at: Slots) -> Tensor:
        if self.training or not len(at):
            return super().forward(inputs, at)
        assert inputs.token_types_BL is None, "an exported graph reads one kind of token"
        rows, length = inputs.ids_BL.shape
        visible_BQK = inputs.visible_BQK
        if visible_BQK is None:
            visible_BQK = torch.ones(1, length, length, dtype=torch.bool)
        tensors = (
            inputs.ids_BL,
            inputs.positions_BL.expand(rows, -1),
            visible_BQK.expand(rows, -1, -1),
            at.rows_M[None],
            at.slots_M[None],
        )
        feed = {name: tensor.contiguous().numpy() for name, tensor in zip(_NAMES, tensors, strict=True)}
        return torch.from_numpy(self.session.run(None, feed)[0])[0]


def check_precision(name: str) -> Precision:
    for known in get_args(Precision):
        if name == known:
            return known
    raise ConfigError(f"precision must be one of {', '.join(get_args(Precision))}; got {name!r}")


def write_graph(model: LanguageModel, folder: Path, precision: Precision) -> None:
    """Put the graph of a model beside its weights, which are in the folder already."""
    if model.config.positions not in POSITIONS:
        raise ConfigError(
            f"a model with {model.config.positions} positions cannot be exported: only {', '.join(POSITIONS)} can"
        )
    onnx, _ = _modules()
    facts = {_WEIGHTS: read_config(folder)[_WEIGHTS], "precision": precision}
    with tempfile.TemporaryDirectory() as scratch, _quiet():
        plain = Path(scratch) / "plain.onnx"
        _export(model, plain)
        path = plain if precision == "fp32" else _quantised(plain, Path(scratch) / "int8.onnx")
        graph = onnx.load(str(path))
        onnx.helper.set_model_props(graph, facts)
        (folder / GRAPH).write_bytes(graph.SerializeToString())


def load_graph(folder: Path, model: LanguageModel) -> GraphModel:
    """The model of a folder with its whole passes run by the graph that lies there."""
    path = folder / GRAPH
    if not path.is_file():
        raise CheckpointError(f"{folder} has no {GRAPH}: make a folder that has one by `pmlm export`")
    _, runtime = _modules()
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = torch.get_num_threads(), 1
    options.log_severity_level = 4
    try:
        session = runtime.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])
        facts = session.get_modelmeta().custom_metadata_map
    except Exception as error:  # the runtime's errors have no other class in common
        raise CheckpointError(f"cannot read {path}: {str(error).splitlines()[0]}") from None
    if facts.get(_WEIGHTS) != read_config(folder).get(_WEIGHTS):
        raise CheckpointError(f"{path} was not made from the weights that {CONFIG} names: run `pmlm export` again")
    graph = GraphModel(model.config, session, check_precision(facts.get("precision", "")))
    graph.load_state_dict(model.state_dict())
    return graph.eval()


def _export(model: LanguageModel, path: Path) -> None:
    rows, length, asked = 3, min(16, model.config.max_length), 5
    ids = torch.zeros(rows, length, dtype=torch.long)
    positions = torch.arange(length).expand(rows, -1).contiguous()
    visible = torch.ones(rows, length, length, dtype=torch.bool)
    at = [torch.zeros(1, asked, dtype=torch.long) for _ in range(2)]  # one tensor given twice would be one input
    b = torch.export.Dim("batch", min=1, max=1 << 16)
    s = torch.export.Dim("length", min=2, max=model.config.max_length)
    m = torch.export.Dim("asked", min=1, max=1 << 24)
    shapes = ({0: b, 1: s}, {0: b, 1: s}, {0: b, 1: s, 2: s}, {1: m}, {1: m})
    program = torch.onnx.export(
        _Pass(model).eval(),
        (ids, positions, visible, *at),
        dynamo=True,
        dynamic_shapes=shapes,
        input_names=list(_NAMES),
        output_names=["logits"],
        verbose=False,
    )
    assert program is not None
    program.save(str(path), external_data=False)


def _quantised(plain: Path, target: Path) -> Path:
    """Matrices that are weights alone; the scores of attention are products of two unknowns and stay as they are."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(
        str(plain), str(target), weight_type=QuantType.QInt8, per_channel=True, op_types_to_quantize=["MatMul"]
    )
    return target


def _modules() -> tuple[Any, Any]:
    try:
        import onnx
        import onnxruntime
        import onnxscript
    except ImportError as error:
        raise ConfigError(f"exported graphs need {error.name}: pip install 'pmlm[fast]'") from None
    del onnxscript
    return onnx, onnxruntime


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter and the quantiser tell of what they do and what they miss; none of it is for our user."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
