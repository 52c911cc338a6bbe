"""Downloads that survive a broken connection: pooch checks the sum and moves the file into place, this resumes."""

import http.client
import shutil
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpac.errors import DataError

CHUNK = 1 << 18
ATTEMPTS = 5  # in a row without a single new byte
TIMEOUT = 30  # seconds without a byte before the connection counts as broken


@dataclass(frozen=True)
class Download:
    url: str
    md5: str
    holds: str = ""  # the md5 of what is packed in it, where that is known

    @property
    def name(self) -> str:
        return self.url.rsplit("/", 1)[-1]


def fetch(download: Download, folder: Path) -> Path:
    """The file in `folder`, complete and with the right checksum, or an error; never a half-written file in its place.

    What a broken download got stays in a '.part' file beside it and is continued the next time.
    """
    import pooch

    pooch.get_logger().setLevel("WARNING")
    by_hand = f"Try again, or copy the file there yourself: {folder / download.name}"
    try:
        return Path(
            pooch.retrieve(
                download.url, f"md5:{download.md5}", fname=download.name, path=folder, downloader=_resuming_downloader
            )
        )
    except ValueError as error:  # pooch has deleted what it got
        raise DataError(
            f"{download.url}: the downloaded file does not have the md5 {download.md5}. {by_hand}"
        ) from error
    except (OSError, http.client.HTTPException) as error:
        raise DataError(f"{download.url} could not be downloaded: {error}. {by_hand}") from error


def _resuming_downloader(url: str, output_file: str, pooch: Any) -> None:
    """As pooch wants it: `output_file` is a temporary name in the folder where the file will be."""
    part = Path(output_file).parent / f"{url.rsplit('/', 1)[-1]}.part"
    idle = 0
    while True:
        before = part.stat().st_size if part.exists() else 0
        try:
            if _continue(url, part):
                break
            reason: Exception = ConnectionError("the connection closed before the end")
        except urllib.error.HTTPError as error:
            if error.code < 500:  # the server will not change its mind
                raise
            reason = error
        except (OSError, http.client.HTTPException) as error:
            reason = error
        after = part.stat().st_size if part.exists() else 0
        idle = 0 if after > before else idle + 1
        if idle == ATTEMPTS:
            raise reason
    shutil.move(part, output_file)


def _continue(url: str, part: Path) -> bool:
    """Append to `part` what is missing; True when the server says that is all."""
    from tqdm import tqdm

    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # nothing beyond what we have; the checksum will tell whether it is right
            return True
        raise
    with response:
        if response.status != 206:  # a server that cannot resume starts over
            have = 0
        length = response.headers.get("Content-Length")
        total = have + int(length) if length else None
        with (
            open(part, "ab" if have else "wb") as file,
            tqdm(
                desc=part.stem, initial=have, total=total, unit="B", unit_scale=True, leave=False, disable=None
            ) as bar,
        ):
            while chunk := response.read(CHUNK):
                file.write(chunk)
                have += len(chunk)
                bar.update(len(chunk))
    return total is None or have >= total
