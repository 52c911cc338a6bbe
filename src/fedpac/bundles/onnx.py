"""A model as one ONNX graph that takes samples as users have them: bytes of images, or the columns of raw rows.

Inputs    x (samples, ...); of tables one for each column, by its name: numbers as doubles (NaN: no value), categories
          as strings ("": no value), both (rows, 1)
Outputs   label (samples,): the name of the class; probabilities (samples, classes), in the order of the metadata.
          Of a model that predicts a number, value (samples, 1)
"""

import contextlib
import io
import json
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedpac.data.preprocessing import Category, Number, Preprocessing
from fedpac.extras import library
from fedpac.prediction import Inputs, Predictor
from fedpac.threads import one_thread

TOLERANCE = 1e-5  # of a probability: onnxruntime adds up in another order
EXTRA = "onnx"


class NoOnnxError(Exception):
    """The model has no ONNX form; the text says why."""


class FromInputs(nn.Module):
    """Probabilities of samples as they are before the network's own normalisation."""

    def __init__(self, model: Predictor) -> None:
        super().__init__()
        self.module = model.module
        self.inputs = model.inputs
        self.numbers = not model.class_names
        self.scaled = model.preprocessing.predicted if model.preprocessing is not None else None

    def forward(self, x: Tensor) -> Tensor:
        x = self.inputs.normalised(x) if self.inputs.kind == "bytes" else x
        scores: Tensor = self.module(self.inputs.cast(x))
        if not self.numbers:
            return scores.double().softmax(1)
        return scores.double() if self.scaled is None else scores.double() * self.scaled.scale + self.scaled.mean


def exported(model: Predictor, about: dict[str, str]) -> bytes:
    """The graph's bytes, after onnxruntime has predicted with it what torch predicts."""
    onnx, runtime = library("onnx", EXTRA), library("onnxruntime", EXTRA)
    library("onnxscript", EXTRA)
    fitted = model.preprocessing
    described: dict[str, Any] = {**about, "classes": model.class_names}
    if fitted is None:
        described["inputs"] = model.inputs.model_dump(mode="json", include={"kind", "shape", "images"})
    else:
        columns = {c.name: c.type for c in fitted.columns if c.width}
        described |= {"columns": columns, "missing": fitted.missing}
        for name in columns.keys() & {"label", "probabilities", "value"}:
            raise NoOnnxError(f"a column is called '{name}', as an output of the graph is; rename it")
    graph = _network(model)
    try:
        if fitted is not None:
            graph = _with_columns(onnx, graph, fitted, model.inputs, _output(model))
        if model.class_names:
            _with_labels(onnx, graph, model.class_names)
        onnx.helper.set_model_props(graph, {"fedpac": json.dumps(described)})
        onnx.checker.check_model(graph)
    except (ValueError, onnx.checker.ValidationError) as error:
        raise NoOnnxError(f"the preprocessing does not fit the graph: {str(error).strip()[:300]}") from None
    data: bytes = graph.SerializeToString()
    _check(runtime, data, model)
    return data


def _output(model: Predictor) -> str:
    return "probabilities" if model.class_names else "value"


def _network(model: Predictor) -> Any:
    rows = torch.export.Dim("rows")
    whole = FromInputs(model).eval()
    try:
        with _silence(), one_thread():
            program = torch.onnx.export(
                whole, (_samples(model.inputs, 3),), dynamo=True,
                external_data=False, verbose=False, input_names=["x"], output_names=[_output(model)],
                dynamic_shapes=({0: rows},),
            )  # fmt: skip
            assert program is not None
            return program.model_proto
    except Exception as error:  # an operation that ONNX does not have, a network whose steps depend on its input
        reason = str(getattr(error, "__cause__", None) or error).strip().splitlines() or [type(error).__name__]
        raise NoOnnxError(f"torch cannot express the network in ONNX: {reason[0][:300]}") from None


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """torch's exporter tells of its progress, and of libraries that are not there."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir", "torch.export")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            for logger in loggers:
                logger.setLevel(logging.CRITICAL)
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def _samples(inputs: Inputs, n: int) -> Tensor:
    """Some that the network takes, and that show nobody's data."""
    random = torch.Generator().manual_seed(0)
    if inputs.kind == "bytes":
        return torch.randint(0, 256, (n, *inputs.shape), generator=random, dtype=torch.uint8)
    if inputs.kind == "whole":
        return torch.randint(0, 2, (n, *inputs.shape), generator=random)
    return torch.randn((n, *inputs.shape), generator=random, dtype=inputs.dtype)


# --- tables -------------------------------------------------------------------------------------------------------


def _with_columns(onnx: Any, graph: Any, fitted: Preprocessing, inputs: Inputs, output: str) -> Any:
    """The graph behind the preprocessing: every column an input, (value - mean) / scale and one-hot before it."""
    helper, kinds = onnx.helper, onnx.TensorProto
    nodes, constants, columns, parts = [], [], [], []

    def constant(name: str, value: float) -> str:
        constants.append(helper.make_tensor(name, kinds.DOUBLE, [], [value]))
        return name

    zero = constant("pre.zero", 0.0)
    for i, column in enumerate(fitted.columns):
        made = f"pre.{i}"
        if isinstance(column, Number):
            columns.append(helper.make_tensor_value_info(column.name, kinds.DOUBLE, ["rows", 1]))
            mean, scale = constant(f"{made}.mean", column.mean), constant(f"{made}.scale", column.scale)
            nodes += [
                helper.make_node("Sub", [column.name, mean], [f"{made}.centred"]),
                helper.make_node("Div", [f"{made}.centred", scale], [f"{made}.scaled"]),
                helper.make_node("IsNaN", [f"{made}.scaled"], [f"{made}.absent"]),
                helper.make_node("Where", [f"{made}.absent", zero, f"{made}.scaled"], [made]),
            ]
        elif column.width:
            columns.append(helper.make_tensor_value_info(column.name, kinds.STRING, ["rows", 1]))
            nodes += [
                helper.make_node(
                    "OneHotEncoder", [column.name], [f"{made}.hot"], domain="ai.onnx.ml", zeros=1,
                    cats_strings=[c.encode() for c in column.categories],
                ),
                helper.make_node("Cast", [f"{made}.hot"], [f"{made}.cast"], to=kinds.DOUBLE),
                helper.make_node("Flatten", [f"{made}.cast"], [made], axis=1),
            ]  # fmt: skip
        else:
            continue  # nobody knows a category of it: it says nothing
        parts.append(made)
    precise = kinds.DOUBLE if inputs.precision == "float64" else kinds.FLOAT
    nodes += [
        helper.make_node("Concat", parts, ["pre.wide"], axis=1),
        helper.make_node("Cast", ["pre.wide"], ["pre.single"], to=kinds.FLOAT),  # as it was in training
        helper.make_node("Cast", ["pre.single"], ["pre.x"], to=precise),
    ]
    before = helper.make_graph(
        nodes, "preprocessing", columns, [helper.make_tensor_value_info("pre.x", precise, ["rows", fitted.width])],
        constants,
    )  # fmt: skip
    version = next(o.version for o in graph.opset_import if o.domain in ("", "ai.onnx"))
    sets = [helper.make_opsetid("", version), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(before, opset_imports=sets, ir_version=graph.ir_version)
    graph = onnx.compose.add_prefix(graph, "net.", rename_inputs=True, rename_outputs=True)
    merged = onnx.compose.merge_models(model, graph, io_map=[("pre.x", "net.x")])
    last = merged.graph.output[0]
    merged.graph.node.append(helper.make_node("Identity", [last.name], [output]))
    last.name = output
    return merged


def _with_labels(onnx: Any, graph: Any, class_names: tuple[str, ...]) -> None:
    helper = onnx.helper
    if not any(o.domain == "ai.onnx.ml" for o in graph.opset_import):
        graph.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    graph.graph.node.extend([
        helper.make_node("ArgMax", ["probabilities"], ["post.class"], axis=1, keepdims=0),
        helper.make_node(
            "LabelEncoder", ["post.class"], ["label"], domain="ai.onnx.ml", keys_int64s=list(range(len(class_names))),
            values_strings=[name.encode() for name in class_names],
        ),
    ])  # fmt: skip
    graph.graph.output.insert(0, helper.make_tensor_value_info("label", onnx.TensorProto.STRING, ["rows"]))


# --- the check ----------------------------------------------------------------------------------------------------


def _check(runtime: Any, data: bytes, model: Predictor) -> None:
    feed, x = _trial(model)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    try:
        session = runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        found = dict(zip([o.name for o in session.get_outputs()], session.run(None, feed), strict=True))
    except Exception as error:  # an operation that onnxruntime does not have
        raise NoOnnxError(f"onnxruntime cannot run it: {str(error).strip()[:300]}") from None
    mine, numbers = found[_output(model)], not model.class_names
    expected = model.predict(x)[:, None] if numbers else model.predict_proba(x)
    apart = float((np.abs(mine - expected) / (1 + np.abs(expected) * numbers)).max())
    if not apart <= TOLERANCE:
        what = "values" if numbers else "probabilities"
        raise NoOnnxError(f"onnxruntime's {what} differ from torch's by {apart:.1e}; at most {TOLERANCE:g} is allowed")
    if not numbers and [str(x) for x in found["label"]] != [model.class_names[k] for k in mine.argmax(axis=1)]:
        raise NoOnnxError("onnxruntime predicts other classes than torch")


def _trial(model: Predictor, n: int = 64) -> tuple[dict[str, NDArray[Any]], object]:
    """The same samples for onnxruntime and for torch."""
    fitted = model.preprocessing
    if fitted is None:
        x = _samples(model.inputs, n)
        return {"x": x.numpy()}, x
    random = np.random.default_rng(0)
    feed: dict[str, NDArray[Any]] = {}
    for column in fitted.columns:
        if isinstance(column, Category):
            known = [*column.categories, "", "a category that nobody knows"]
            drawn = np.array([known[k] for k in random.integers(0, len(known), n)], dtype=object)
        else:
            drawn = random.normal(column.mean, column.scale, n)
            drawn[random.random(n) < 0.2] = np.nan
        feed[column.name] = drawn[:, None]
    rows = {name: values[:, 0] for name, values in feed.items()}
    return {c.name: feed[c.name] for c in fitted.columns if c.width}, rows
