"""Copies the tables of benchmarks/results/ into docs/speed.md, between the marks that name them.

python -m benchmarks.pages [--check]        --check only says whether the page is up to date
"""

import json
import re
import sys

from benchmarks.common import NAMES, RESULTS, ROOT, Target, table

PAGE = ROOT / "docs" / "speed.md"
MARKS = re.compile(r"(<!-- results: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
TARGETS = "targets"  # the mark of the table of what was promised, which is gathered from all benchmarks


def filled(page: str) -> str:
    def fill(found: re.Match[str]) -> str:
        content = targets() if found[2] == TARGETS else measured(found[2])
        return f"{found[1]}\n{content}\n{found[3]}"

    return MARKS.sub(fill, page)


def measured(name: str) -> str:
    """What one benchmark found, processor by processor."""
    return "\n".join(file.read_text() for file in sorted(RESULTS.glob(f"*/{name}.md"))) or "Not measured yet.\n"


def targets() -> str:
    """Every promise with what each processor makes of it; a target that is missed is in bold."""
    columns: list[str] = []
    found: dict[str, dict[str, Target]] = {}
    for file in (file for name in NAMES for file in sorted(RESULTS.glob(f"*/{name}.json"))):
        result = json.loads(file.read_text())
        processor = result["provenance"]["machine"]["processor"]
        columns += [processor] if processor not in columns else []
        for values in result.get("targets", []):
            target = Target.from_json(values)
            found.setdefault(target.what, {})[processor] = target

    def cell(target: Target | None) -> str:
        if target is None:
            return "not measured"
        return f"{target.measured} met" if target.met else f"**{target.measured} missed**"

    rows = [
        [what, next(iter(by.values())).wanted, *(cell(by.get(processor)) for processor in columns)]
        for what, by in found.items()
    ]
    return table(["target", "wanted", *columns], rows) + "\n"


def main() -> None:
    old = PAGE.read_text()
    new = filled(old)
    if "--check" in sys.argv:
        sys.exit(0 if new == old else f"{PAGE.name} differs from benchmarks/results: run 'python -m benchmarks.pages'")
    PAGE.write_text(new)


if __name__ == "__main__":
    main()
