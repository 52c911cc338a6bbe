"""Downloads against a server on this machine that can resume, can cut the connection, and can lie."""

import hashlib
import re
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from fedpac.data import datasets, download
from fedpac.data.download import Download, fetch
from fedpac.data.published import PUBLISHED
from fedpac.errors import DataError

CONTENT = bytes(range(256)) * 8192  # 2 MB


class Server(ThreadingHTTPServer):
    cut_after: int | None = None  # bytes per answer before the connection breaks
    ranges = True
    status: int | None = None
    content = CONTENT

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[str | None] = []

    def url(self, name: str = "set.gz") -> str:
        return f"http://127.0.0.1:{self.server_port}/{name}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self):
        wanted = self.headers.get("Range")
        self.server.asked.append(wanted)
        if self.server.status is not None:
            return self.send_error(self.server.status)
        start = int(re.match(r"bytes=(\d+)-", wanted).group(1)) if wanted and self.server.ranges else 0
        if start >= len(self.server.content):
            return self.send_error(416)
        body = self.server.content[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: self.server.cut_after])

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def wanted(server):
    return Download(server.url(), hashlib.md5(CONTENT).hexdigest())


def test_a_plain_download(tmp_path, server, wanted):
    path = fetch(wanted, tmp_path / "new" / "folder")
    assert path == tmp_path / "new" / "folder" / "set.gz"
    assert path.read_bytes() == CONTENT
    assert [p.name for p in path.parent.iterdir()] == ["set.gz"]


def test_a_cut_connection_is_continued(tmp_path, server, wanted):
    server.cut_after = 700_000
    assert fetch(wanted, tmp_path).read_bytes() == CONTENT
    assert server.asked == [None, "bytes=700000-", "bytes=1400000-"]


def test_what_a_failed_download_got_is_used_the_next_time(tmp_path, server, wanted, monkeypatch):
    (tmp_path / "set.gz.part").write_bytes(CONTENT[:1_000_000])
    server.cut_after = 0
    with pytest.raises(DataError, match="connection closed before the end"):
        fetch(wanted, tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["set.gz.part"]  # no half-written file in its place
    assert len(server.asked) == download.ATTEMPTS
    server.cut_after = None
    assert fetch(wanted, tmp_path).read_bytes() == CONTENT
    assert server.asked[-1] == "bytes=1000000-"


def test_a_server_that_cannot_resume_starts_over(tmp_path, server, wanted):
    (tmp_path / "set.gz.part").write_bytes(CONTENT[:1000])
    server.ranges = False
    assert fetch(wanted, tmp_path).read_bytes() == CONTENT


def test_a_part_that_is_already_complete(tmp_path, server, wanted):
    (tmp_path / "set.gz.part").write_bytes(CONTENT)
    assert fetch(wanted, tmp_path).read_bytes() == CONTENT


def test_wrong_content_is_refused_and_leaves_nothing(tmp_path, server, wanted):
    server.content = CONTENT[:-1] + b"!"
    with pytest.raises(DataError, match=wanted.md5):
        fetch(wanted, tmp_path)
    assert not list(tmp_path.iterdir())
    server.content = CONTENT
    assert fetch(wanted, tmp_path).read_bytes() == CONTENT  # and the next time starts afresh


@pytest.mark.parametrize(("status", "tries"), [(404, 1), (503, download.ATTEMPTS)])
def test_a_server_that_says_no(tmp_path, server, wanted, status, tries):
    server.status = status
    with pytest.raises(DataError) as caught:
        fetch(wanted, tmp_path)
    for word in (server.url(), str(status), str(tmp_path / "set.gz")):
        assert word in str(caught.value)
    assert len(server.asked) == tries


def test_a_missing_set_is_downloaded_and_decoded(tmp_path, server, fashion, monkeypatch):
    """Three files lie there, the fourth comes from the publisher."""
    file = tmp_path / "fashion-mnist" / "t10k-images-idx3-ubyte.gz"
    server.content = file.read_bytes()
    file.unlink()
    recipe = PUBLISHED["fashion-mnist"]
    moved = [Download(server.url(d.name), hashlib.md5(server.content).hexdigest()) for d in recipe.downloads]
    monkeypatch.setitem(PUBLISHED, "fashion-mnist", replace(recipe, downloads=tuple(moved)))
    assert (datasets.load("fashion-mnist", tmp_path).test.x[:, 0].numpy() == fashion["x_test"]).all()
    assert len(server.asked) == 1
