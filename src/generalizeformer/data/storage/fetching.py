"""The network: addresses, Google Drive, the Hugging Face hub, torchvision's mirrors. Knows no datasets."""

import http.client
import os
import shutil
import socket
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from generalizeformer.data.storage.published import Published
from generalizeformer.data.storage.trees import Tree, scan
from generalizeformer.errors import DataError

Report = Callable[[int, int], None]  # megabytes done, megabytes in all

_CHUNK = 1 << 20
_MEGABYTE = 1_000_000
_PATIENCE = 60.0  # seconds without a byte


class NetworkError(DataError):
    """Something that could not be fetched, which placing the files by hand can make good."""


def reach(address: str) -> None:
    """Nothing where the address's machine answers: others try for half a minute before they say that none does."""
    if urllib.request.getproxies():
        return  # only the proxy knows
    parts = urlsplit(address)
    host, port = parts.hostname or "", parts.port or (80 if parts.scheme == "http" else 443)
    try:
        socket.create_connection((host, port), timeout=10).close()
    except OSError as error:
        raise NetworkError(
            f"there is no network, {host} does not answer ({error.strerror or error})"
        ) from None


def from_address(address: str, file: Path, report: Report | None = None) -> None:
    """The file at an address. What a broken connection leaves is kept as .partial and gone on with."""
    reach(address)
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f"{file.name}.partial")
    have = partial.stat().st_size if partial.exists() else 0
    headers = {"Range": f"bytes={have}-"} if have else {}
    try:
        with _opened(urllib.request.Request(address, headers=headers)) as response:
            _write(response, partial, have if response.status == 206 else 0, report)
    except urllib.error.HTTPError as error:
        _refused(error, address, partial, have)
    except (OSError, http.client.HTTPException) as error:
        raise NetworkError(
            f"{address} could not be fetched whole ({error}); run it again, and it goes on from there"
        ) from None
    os.replace(partial, file)


def from_drive(identity: str, file: Path, report: Report | None = None) -> None:
    """The file of this id on Google Drive, which appears when it is whole."""
    try:
        import gdown
    except ImportError:
        raise DataError(
            "Google Drive needs a package that is not installed; run: pip install 'generalizeformer[data]'"
        ) from None
    reach("https://drive.google.com")
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        gdown.download(id=identity, output=str(file), quiet=report is None, resume=True)
    except Exception as error:  # the package and the network stack below it raise all kinds
        raise NetworkError(f"Google Drive did not give the file ({_first_line(error)})") from None
    if not file.is_file():
        raise NetworkError("Google Drive did not give the file; perhaps too many have asked today")


def from_hub(published: Published) -> Tree:
    """The dataset's images on the Hugging Face hub, fetched to the cache of the package `datasets`."""
    from huggingface_hub import constants

    reach(constants.ENDPOINT)
    return scan(f"hub:{published.hub}", published.folders)


def from_torchvision(name: str, root: Path) -> None:
    """The files of MNIST or of a set like it, in root/name/raw."""
    import torchvision

    dataset: Any = getattr(torchvision.datasets, name)
    reach(dataset.mirrors[0])
    beside = root / f".{name}.partial"  # torchvision takes half a file for a whole one
    shutil.rmtree(beside, ignore_errors=True)
    root.mkdir(parents=True, exist_ok=True)
    try:
        dataset(beside, download=True)
        os.replace(beside / name, root / name)
    except (OSError, RuntimeError) as error:
        raise NetworkError(f"torchvision could not fetch {name} ({_first_line(error)})") from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _opened(request: urllib.request.Request) -> Any:
    return urllib.request.urlopen(request, timeout=_PATIENCE)


def _write(response: Any, partial: Path, start: int, report: Report | None) -> None:
    """Appends the answer to what is there. An answer that ends early is an error: nobody else would notice."""
    length = response.headers.get("Content-Length")
    total = None if length is None else start + int(length)
    done = start
    with partial.open("r+b" if start else "wb") as file:
        file.seek(start)
        while block := response.read(_CHUNK):
            file.write(block)
            done += len(block)
            if report and total is not None:
                report(done // _MEGABYTE, total // _MEGABYTE)
    if total is not None and done != total:
        raise OSError(f"{done:,} of {total:,} bytes came")


def _refused(error: urllib.error.HTTPError, address: str, partial: Path, have: int) -> None:
    """An error that says what the server said, unless that is that nothing is left to fetch."""
    if error.code == 416:  # nothing lies behind what we have
        if error.headers.get("Content-Range") == f"bytes */{have}":
            return
        partial.unlink()
    raise NetworkError(f"{address} was refused ({error.code} {error.reason})") from None


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
