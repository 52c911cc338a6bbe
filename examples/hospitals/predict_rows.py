"""Raw rows of a CSV file through a model.onnx: python predict_rows.py MODEL.onnx ROWS.csv PREDICTIONS.csv

It needs onnxruntime and NumPy, and neither fedpac nor torch nor pandas: what a hospital's own system would run.
"""

import csv
import json
import sys

import numpy as np
import onnxruntime

model, table, target = sys.argv[1:4]
session = onnxruntime.InferenceSession(model)
about = json.loads(session.get_modelmeta().custom_metadata_map["fedpac"])
with open(table, newline="", encoding="utf-8-sig") as file:
    separator = max(",;\t", key=file.readline().count)
    file.seek(0)
    rows = list(csv.DictReader(file, delimiter=separator))

feed = {}
for column, kind in about["columns"].items():
    texts = [(row.get(column) or "").strip() for row in rows]  # a column that the site does not have is missing
    texts = ["" if text in about["missing"] else text for text in texts]
    if kind == "number" and separator == ";":  # between semicolons, a comma is a decimal point
        texts = [text.replace(",", ".") for text in texts]
    values = [float(text or "nan") for text in texts] if kind == "number" else texts
    feed[column] = np.array(values, dtype=np.float64 if kind == "number" else object)[:, None]

label, probabilities = session.run(["label", "probabilities"], feed)
with open(target, "w", newline="") as file:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["row", "class", *(f"p({name})" for name in about["classes"])])
    for i, (name, row) in enumerate(zip(label, probabilities, strict=True)):
        writer.writerow([i, name, *(f"{p:.6f}" for p in row)])
