"""Writes .ci/requirements.txt: what pip would install here for the tests, each file with its SHA-256.

python .ci/hashes.py            write it
python .ci/hashes.py --check    nothing but these files would be installed, and each is what it was (downloads them all)
python .ci/hashes.py --fits     whether they are for this platform and torch's build for CPUs is to be had, as exit code
"""

import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
FILE = HERE / "requirements.txt"
HEAD = """\
# What `make test` installs, with the SHA-256 of every wheel: Linux, x86-64, Python 3.11, torch's build for CPUs.
# `python .ci/hashes.py` writes it; `pip install --require-hashes --no-deps -r .ci/requirements.txt` installs it.
"""


def pip(*arguments: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", *arguments], check=True
    )


def write() -> None:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        pip("--report", str(report), "-c", str(HERE.parent / "constraints.txt"), "-e", f"{HERE.parent}[dev]")
        found = json.loads(report.read_text())["install"]
    lines = []
    for each in found:
        digest = each["download_info"].get("archive_info", {}).get("hashes", {}).get("sha256")
        if digest:  # all but this project
            lines.append(f"{each['metadata']['name']}=={each['metadata']['version']} --hash=sha256:{digest}\n")
    FILE.write_text(HEAD + "".join(sorted(lines, key=str.lower)))


def fits() -> bool:
    """The default index has torch under the same version, but built for GPUs: another file."""
    if (platform.system(), platform.machine(), sys.version_info[:2]) != ("Linux", "x86_64", (3, 11)):
        return False
    torch = next(line.split()[0] for line in FILE.read_text().splitlines() if line.startswith("torch=="))
    try:
        pip("--no-deps", torch)
    except subprocess.CalledProcessError:
        return False
    return True


if __name__ == "__main__":
    if sys.argv[1:] == ["--fits"]:
        sys.exit(not fits())
    elif sys.argv[1:] == ["--check"]:
        pip("--require-hashes", "--no-deps", "-r", str(FILE))
    else:
        write()
