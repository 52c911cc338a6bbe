"""What a user of a terminal sees of a program: its output on a screen of 80 x 24."""

import os
import pty
import re
import struct
import subprocess
from collections.abc import Sequence
from fcntl import ioctl
from pathlib import Path
from termios import TIOCSWINSZ

COLUMNS, ROWS = 80, 24
TOKENS = re.compile(r"\x1b\[\??([\d;]*)([A-Za-z])|([\r\n])|([^\x1b\r\n]+)")


class Screen:
    """Text, new lines, and the few commands that our programs send: cursor up, erase a line, colours."""

    def __init__(self, output: str) -> None:
        self.lines = [""]
        self.row = self.column = 0
        for numbers, command, move, text in TOKENS.findall(output):
            if command == "A":
                self.row -= int(numbers or 1)
                assert self.row >= 0, "above the top of the screen"
            elif command == "K":
                self.lines[self.row] = ""
            elif move == "\r":
                self.column = 0
            elif move == "\n":
                self.row += 1
                self.lines += [""] * (self.row + 1 - len(self.lines))
            elif text:
                line = self.lines[self.row].ljust(self.column)
                self.lines[self.row] = line[: self.column] + text + line[self.column + len(text) :]
                self.column += len(text)
            else:
                assert command in ("m", "h", "l"), f"what is \\x1b[{numbers}{command}?"

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.lines).rstrip()


def typed(command: Sequence[object], cwd: Path, **environment: str) -> tuple[int, Screen]:
    """The exit code, and the screen at the end; a screen of more than 24 lines has scrolled."""
    ours, theirs = pty.openpty()
    ioctl(theirs, TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    variables = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR")}
    variables |= {"TERM": "xterm", **environment}
    process = subprocess.Popen([*map(str, command)], stdin=theirs, stdout=theirs, stderr=theirs, cwd=cwd, env=variables)
    os.close(theirs)
    output = b""
    while True:
        try:
            got = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not got:
            break
        output += got
    os.close(ours)
    return process.wait(), Screen(output.decode(errors="replace"))
