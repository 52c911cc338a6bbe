"""Four hospitals' tables from scikit-learn's breast-cancer data: python make_data.py FOLDER

As hospitals have them: patients with several lesions, texts beside numbers, gaps that everybody marks in another way,
columns in another order at every site, one that a site does not have, and a semicolon where others have a comma.
"""

import csv
import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer

SITES = {  # share of large lesions, what stands for no value, separator
    "north": (0.85, "NA", ","),
    "east": (0.6, "", ";"),
    "south": (0.35, "?", ","),
    "west": (0.15, "", ","),
}
COLUMNS = ["mean radius", "mean texture", "mean smoothness", "mean concavity", "worst area", "worst symmetry"]


def main(folder: Path) -> None:
    data = load_breast_cancer(as_frame=True)
    frame, random = data.data, np.random.default_rng(0)
    large = (frame["mean radius"] > frame["mean radius"].median()).to_numpy()
    odds = np.array([[share if big else 1 - share for share, _, _ in SITES.values()] for big in large])
    drawn = [random.choice(len(SITES), p=row / row.sum()) for row in odds]
    folder.mkdir(parents=True, exist_ok=True)
    for site, (name, (_, gap, separator)) in enumerate(SITES.items()):
        rows = [row for row, place in enumerate(drawn) if place == site]
        patient = 0
        lines = []
        for row in rows:
            patient += random.random() < 0.8  # every fifth lesion is another one of the same patient
            values = {column: f"{frame[column].iloc[row]:.4f}" for column in COLUMNS}
            density = ["low", "medium", "high"][int(np.digitize(frame["mean texture"].iloc[row], [17, 21]))]
            scanner = random.choice(["Mono", "Duo", "Prisma"] if name == "west" else ["Mono", "Duo"])
            values |= {"density": density, "scanner": scanner}
            values = {column: gap if random.random() < 0.08 else value for column, value in values.items()}
            values |= {"patient": f"{name}-{patient:03}", "diagnosis": str(data.target_names[data.target.iloc[row]])}
            lines.append(values)
        columns = [column for column in lines[0] if (name, column) != ("south", "worst symmetry")]
        random.shuffle(columns)
        with open(folder / f"{name}.csv", "w", newline="") as file:
            writer = csv.DictWriter(file, columns, delimiter=separator, extrasaction="ignore", lineterminator="\n")
            writer.writeheader()
            writer.writerows(lines)
        print(f"{folder / name}.csv: {len(lines)} lesions of {patient + 1} patients")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "data"))
