"""Copies the tables of benchmarks/results/ into docs/speed.md, between the marks that name them.

python -m benchmarks.pages [--check]        --check only says whether the page is up to date
"""

import re
import sys

from benchmarks.common import RESULTS, ROOT

PAGE = ROOT / "docs" / "speed.md"
MARKS = re.compile(r"(<!-- results: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(page: str) -> str:
    def fill(found: re.Match[str]) -> str:
        file = RESULTS / f"{found[2]}.md"
        content = file.read_text() if file.exists() else "Not measured yet.\n"
        return f"{found[1]}\n{content}\n{found[3]}"

    return MARKS.sub(fill, page)


def main() -> None:
    old = PAGE.read_text()
    new = filled(old)
    if "--check" in sys.argv:
        sys.exit(0 if new == old else f"{PAGE.name} differs from benchmarks/results: run 'python -m benchmarks.pages'")
    PAGE.write_text(new)


if __name__ == "__main__":
    main()
