"""Is OpenVINO worth an engine of its own? Its fp32 and int8 beside torch and ONNX Runtime, by the same measure.

    pip install 'pmlm[fast]' openvino nncf
    python scripts/trial_openvino.py [-m DIR] --file FILE [--out results/export/openvino.json]

OpenVINO's default precision is 16 bits where the processor names them, and on some that ends in an illegal instruction:
fp32 is forced, and the instructions are capped before anything is imported.
"""

import os

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_VNNI")

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import nncf
import numpy as np
import openvino
import torch

from pmlm.bench.export import ExportBench, compare
from pmlm.corpus.documents import read_documents
from pmlm.corpus.framing import Row, windows
from pmlm.evaluation import draw_part
from pmlm.lm import LM, load
from pmlm.model.graph import GRAPH, GraphModel

FORCED = {"INFERENCE_PRECISION_HINT": "f32", "NUM_STREAMS": 1}


class Session:
    """OpenVINO behind the one call that a graph model makes."""

    def __init__(self, network: Any) -> None:
        options = FORCED | {"INFERENCE_NUM_THREADS": torch.get_num_threads()}
        self.request = openvino.Core().compile_model(network, "CPU", options).create_infer_request()

    def run(self, _names: None, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
        return [self.request.infer(feed)[0].copy()]


def engine(lm: LM, network: Any) -> LM:
    model = GraphModel(lm.model.config, Session(network), "fp32")
    model.load_state_dict(lm.model.state_dict())
    return LM(model.eval(), lm.tokenizer, lm.about, None, lm.words)


def calibration(rows: list[Row], lm: LM, count: int = 32) -> nncf.Dataset:
    """Held-out rows with half of their tokens hidden, as the graph reads them."""
    rng = np.random.default_rng(0)
    data = []
    for row in rows[:count]:
        ids, n = np.array([row.ids]), len(row.ids)
        slots = np.flatnonzero(np.array(row.maskable) & (rng.random(n) < 0.5))[None]
        ids[0, slots[0]] = lm.tokenizer.mask_id
        if slots.size:
            everybody = np.ones((1, n, n), dtype=bool)
            feed = {
                "ids": ids,
                "positions": np.arange(n)[None],
                "visible": everybody,
                "rows": 0 * slots,
                "slots": slots,
            }
            data.append(feed)
    return nncf.Dataset(data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", type=Path)
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=256)
    parser.add_argument("--out", type=Path, default=Path("results/export/openvino.json"))
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    lm = load(options.model, device="cpu")
    texts = enumerate(read_documents(options.file))
    rows = [row for i, text in texts for row in windows(text, lm.tokenizer, min(128, lm.model.config.max_length), i)]
    rows = draw_part(rows, options.limit, 0)
    with tempfile.TemporaryDirectory() as scratch:
        lms = {"torch": lm}
        for precision in ("fp32", "int8"):
            lm.export(Path(scratch) / precision, precision=precision)
            lms[f"onnx {precision}"] = load(Path(scratch) / precision, engine="onnx")
        network = openvino.Core().read_model(str(Path(scratch) / "fp32" / GRAPH))
        lms["openvino fp32"] = engine(lm, network)
        lms["openvino int8 weights"] = engine(
            lm, nncf.compress_weights(network.clone(), mode=nncf.CompressWeightsMode.INT8_ASYM)
        )
        whole = nncf.quantize(network.clone(), calibration(rows, lm), model_type=nncf.ModelType.TRANSFORMER)
        lms["openvino int8"] = engine(lm, whole)
        report = compare(lms, rows, ExportBench(rounds=options.rounds), lambda _done: None)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report | {"file": options.file.name}, indent=2) + "\n")
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
