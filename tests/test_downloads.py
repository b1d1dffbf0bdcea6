"""Downloads from a server on the loopback that misbehaves, and archives that want out of their folder."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import tarfile
import threading
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from vitplast import images
from vitplast.errors import IntegrityError, MissingDependencyError, VitplastError
from vitplast.images import archives, download, made_up, marker, presence, sources
from vitplast.images.sources import PIECES, Piece

CONTENT = np.random.default_rng(0).bytes(700_001)
MD5 = "md5:" + hashlib.md5(CONTENT).hexdigest()
PIECE = Piece("http://nowhere.invalid/a/file.bin", MD5[4:], "file.bin", None)


@dataclass
class Server:
    """Answers by `behave(handler, number of the request, first byte asked for)`; `asked`: path and range of each."""

    behave: Callable
    asked: list[tuple[str, str]] = field(default_factory=list)
    address: str = ""


@pytest.fixture
def serve(monkeypatch):
    monkeypatch.setattr("pooch.core.time.sleep", lambda seconds: None)  # the waits between tries
    monkeypatch.delenv("VITPLAST_OFFLINE", raising=False)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    running = []

    def start(behave):
        server = Server(behave)

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                asked = self.headers.get("Range", "")
                server.asked.append((self.path, asked))
                server.behave(self, len(server.asked), int(asked[6:-1]) if asked else 0)

            def log_message(self, *args):
                pass

        http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        http.daemon_threads = True
        threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True).start()
        server.address = f"http://127.0.0.1:{http.server_port}"
        running.append(http)
        return server

    yield start
    for http in running:
        http.shutdown()
        http.server_close()


def send(handler, content, start=0, length=None, most=None):
    """What follows `start`, with any stated length, cut off after `most` bytes."""
    body = content[start:]
    handler.send_response(206 if start else 200)
    if start:
        handler.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
    handler.send_header("Content-Length", str(len(body) if length is None else length))
    handler.end_headers()
    handler.wfile.write(body[:most])
    handler.wfile.flush()
    handler.close_connection = True


def fetch(server, folder, known=MD5):
    return download.retrieve(PIECE, f"{server.address}/file.bin", folder, known)


# ---- 9: ten downloads that go wrong


@pytest.mark.parametrize("place", [0, 1, 70_000, 350_000, 700_000])
def test_a_download_that_is_cut_off_goes_on_where_it_stopped(serve, tmp_path, place):
    server = serve(lambda h, n, start: send(h, CONTENT, start, most=place if n == 1 else None))
    assert fetch(server, tmp_path).read_bytes() == CONTENT
    assert len(server.asked) == 2
    begun = int(server.asked[1][1].removeprefix("bytes=").rstrip("-") or 0)
    assert begun <= place
    assert begun > 0 or place < 300_000  # what came is kept in steps of a quarter megabyte
    assert [path.name for path in tmp_path.iterdir()] == ["file.bin"]


def always_cut(handler, n, start):
    send(handler, CONTENT, start, most=1000)


def server_error(handler, n, start):
    handler.send_error(500)


def too_short(handler, n, start):
    send(handler, CONTENT[:1000])


def too_long(handler, n, start):
    send(handler, CONTENT, start, length=len(CONTENT) - start + 10)


def silent(handler, n, start):
    send(handler, CONTENT, start, most=10)
    threading.Event().wait(0.9)


BAD = [(always_cut, VitplastError), (server_error, VitplastError), (too_short, IntegrityError),
       (too_long, VitplastError), (silent, VitplastError)]  # fmt: skip


@pytest.mark.parametrize(("behave", "error"), BAD, ids=[b.__name__ for b, _ in BAD])
def test_a_download_that_never_comes_right_ends_and_leaves_nothing_under_its_name(
    serve, tmp_path, monkeypatch, behave, error
):
    monkeypatch.setattr(download, "TIMEOUT", 0.3)
    server = serve(behave)
    with pytest.raises(error, match=f"{server.address}/file.bin") as caught:
        fetch(server, tmp_path)
    assert f"{download.TRIES} tries" in str(caught.value)
    assert len(server.asked) == download.TRIES
    assert not (tmp_path / "file.bin").exists()
    assert {path.name for path in tmp_path.iterdir()} <= {"file.bin.part"}
    server.behave = lambda h, n, start: send(h, CONTENT, start)  # the server is well again
    assert fetch(server, tmp_path).read_bytes() == CONTENT


def test_there_are_ten_downloads_that_go_wrong():
    places = next(m for m in test_a_download_that_is_cut_off_goes_on_where_it_stopped.pytestmark).args[1]
    assert len(places) + len(BAD) == 10


# ---- more of the same


def test_another_file_is_refused_and_not_kept(serve, tmp_path):
    server = serve(lambda h, n, start: send(h, CONTENT[::-1], start))
    with pytest.raises(IntegrityError, match="is not the expected file in 4 tries"):
        fetch(server, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("status", [200, 416])
def test_a_server_that_can_not_go_on_is_asked_from_the_start(serve, tmp_path, status):
    def behave(handler, n, start):
        if start and status == 416:
            handler.send_error(416)
        else:
            send(handler, CONTENT)

    (tmp_path / "file.bin.part").write_bytes(b"old" * 100)
    server = serve(behave)
    assert fetch(server, tmp_path).read_bytes() == CONTENT
    assert server.asked[0][1] == "bytes=300-"


def test_a_server_that_drips_is_given_up(serve, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "PATIENCE", 0.05)
    monkeypatch.setattr(download, "SLOWEST", 1e9)

    def drip(handler, n, start):
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(CONTENT)))
        handler.end_headers()
        for k in range(0, len(CONTENT), 300_000):
            try:
                handler.wfile.write(CONTENT[k : k + 300_000])
            except OSError:
                return
            threading.Event().wait(0.06)

    with pytest.raises(VitplastError, match=r"only .* bytes in"):
        fetch(serve(drip), tmp_path, known=None)


def test_a_full_disk_is_named_and_a_later_call_goes_on(serve, tmp_path, monkeypatch):
    server = serve(lambda h, n, start: send(h, CONTENT, start))
    write = download._Resuming._write

    def full(self, answer, have):
        self.part.write_bytes(CONTENT[:1234])
        raise OSError(errno.ENOSPC, "No space left on device", str(self.part))

    monkeypatch.setattr(download._Resuming, "_write", full)
    with pytest.raises(VitplastError, match=r"No space left.*file\.bin\.part"):
        fetch(server, tmp_path)
    assert not (tmp_path / "file.bin").exists()
    monkeypatch.setattr(download._Resuming, "_write", write)
    assert fetch(server, tmp_path).read_bytes() == CONTENT
    assert server.asked[-1][1] == "bytes=1234-"


# ---- whole sets from a mirror


def archive_of(folder: Path, inside: str, suffix: str = ".tar.gz") -> bytes:
    stream = io.BytesIO()
    if suffix == ".zip":
        with zipfile.ZipFile(stream, "w") as file:
            for path in sorted(folder.rglob("*")):
                file.write(path, f"{inside}/{path.relative_to(folder).as_posix()}")
    else:
        with tarfile.open(fileobj=stream, mode="w:gz") as file:
            file.add(folder, inside)
    return stream.getvalue()


@pytest.fixture
def mirror(serve, tmp_path, monkeypatch):
    """A mirror of made-up sets, the pieces with their hashes, and an empty data folder whose marker knows them."""
    made = tmp_path / "made"
    facts = made_up.write(made, ["cifar10", "pets", "domainnet_sketch"], classes=2, pool=3, test=3, side=16)
    files = {
        "/cifar10/cifar-10-python.tar.gz": archive_of(made / "cifar10" / "cifar-10-batches-py", "cifar-10-batches-py"),
        "/pets/images.tar.gz": archive_of(made / "pet" / "oxford-iiit-pet" / "images", "images"),
        "/pets/annotations.tar.gz": archive_of(made / "pet" / "oxford-iiit-pet" / "annotations", "annotations"),
        "/domainnet_sketch_official/sketch.zip": archive_of(made / "domainnet" / "sketch", "sketch", ".zip"),
    }
    for part in ("train", "test"):
        name = f"sketch_{part}.txt"
        files[f"/domainnet_sketch_official/{name}"] = (made / "domainnet" / name).read_bytes()

    def hashed(name, piece):
        return Piece(piece.url, hashlib.md5(files[f"/{name}/{piece.file}"]).hexdigest(), piece.target, piece.inside)

    pieces = {name: tuple(hashed(name, piece) for piece in PIECES[name]) for name in ("cifar10", "pets")}
    for module in (presence, download):
        monkeypatch.setattr(module, "PIECES", {**PIECES, **pieces})
    data = tmp_path / "data"
    data.mkdir()
    marker.write(data, facts)
    monkeypatch.setenv("VITPLAST_DATA", str(data))
    monkeypatch.setenv(marker.VARIABLE, "1")

    def behave(handler, n, start):
        if handler.path in files:
            send(handler, files[handler.path], start)
        else:
            handler.send_error(404)

    server = serve(behave)
    monkeypatch.setenv(sources.MIRROR, server.address + "/")
    return server, data, files


def test_a_set_is_fetched_only_when_asked_and_once(mirror):
    server, data, _ = mirror
    with pytest.raises(MissingDependencyError, match=r"expected .*cifar-10-batches-py.*--download"):
        images.open_images("cifar10", size=16)
    assert not server.asked
    assert len(images.open_images("cifar10", size=16, download=True).test) == 6
    assert [path for path, _ in server.asked] == ["/cifar10/cifar-10-python.tar.gz"]
    assert len(images.open_images("cifar10", size=16, download=True).test) == 6
    assert len(server.asked) == 1
    left = {path.name for path in data.rglob("*") if path.is_file()}
    assert not {name for name in left if name.endswith((".gz", ".part"))}


def test_an_archive_that_lies_there_is_unpacked_and_kept(mirror, monkeypatch):
    server, data, files = mirror
    monkeypatch.setenv("VITPLAST_OFFLINE", "1")
    with pytest.raises(VitplastError, match="VITPLAST_OFFLINE"):
        images.open_images("cifar10", size=16, download=True)
    path = data / "cifar10" / "cifar-10-python.tar.gz"
    path.parent.mkdir()
    path.write_bytes(files["/cifar10/cifar-10-python.tar.gz"])
    with pytest.raises(MissingDependencyError, match=r"cifar-10-python\.tar\.gz would be unpacked"):
        images.open_images("cifar10", size=16)
    assert len(images.open_images("cifar10", size=16, download=True).train) == 4
    assert path.is_file()
    assert not server.asked


def test_a_set_of_two_archives_goes_on_with_the_second(mirror):
    server, data, files = mirror
    annotations = files.pop("/pets/annotations.tar.gz")
    with pytest.raises(VitplastError, match=r"annotations\.tar\.gz could not be fetched"):
        images.open_images("pets", size=16, download=True)
    assert sorted(p.name for p in (data / "pet" / "oxford-iiit-pet").iterdir()) == ["images"]
    files["/pets/annotations.tar.gz"] = annotations
    assert len(images.open_images("pets", size=16, download=True).test) == 6
    assert [path for path, _ in server.asked].count("/pets/images.tar.gz") == 1


def test_a_hash_that_is_not_published_is_recorded_and_compared_ever_after(mirror):
    _, data, files = mirror
    name, path = "domainnet_sketch_official", "/domainnet_sketch_official/sketch.zip"
    assert len(images.open_images(name, size=16, download=True).test) == 6
    recorded = json.loads((data / download.RECORD).read_text())
    (piece, *_) = PIECES[name]
    assert recorded[piece.url] == "sha256:" + hashlib.sha256(files[path]).hexdigest()
    assert len(recorded) == 3
    (data / "domainnet" / "sketch").rename(data / "away")
    changed = dict(files)
    files[path] = archive_of(data / "away" / "airplane", "sketch", ".zip")
    with pytest.raises(IntegrityError, match=r"sketch\.zip is not the expected file"):
        images.open_images(name, size=16, download=True)
    assert not (data / "domainnet" / "sketch").exists()
    files[path] = changed[path]
    assert len(images.open_images(name, size=16, download=True).test) == 6


# ---- 16: ten archives that are not unpacked


def tar(path, *entries):
    with tarfile.open(path, "w:gz") as file:
        for name, kind, link in entries:
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = kind, link
            content = b"evil" if kind == tarfile.REGTYPE else b""
            entry.size = len(content)
            file.addfile(entry, io.BytesIO(content))


def zipped(path, *entries, mode=0o100644):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in entries:
            entry = zipfile.ZipInfo(name)
            entry.external_attr, entry.compress_type = mode << 16, zipfile.ZIP_DEFLATED
            file.writestr(entry, content)


FILE = tarfile.REGTYPE
EVIL = {
    "goes up": (lambda p, out: tar(p, ("set/a", FILE, ""), ("../evil", FILE, "")), "outside"),
    "absolute": (lambda p, out: tar(p, (str(out / "evil"), FILE, "")), "outside"),
    "through a link": (
        lambda p, out: tar(p, ("set/door", tarfile.SYMTYPE, str(out)), ("set/door/evil", FILE, "")),
        "symbolic link",
    ),
    "symbolic link": (lambda p, out: tar(p, ("set/a", tarfile.SYMTYPE, "../../secret")), "symbolic link"),
    "hard link": (lambda p, out: tar(p, ("set/a", tarfile.LNKTYPE, "../../secret")), "hard link"),
    "device": (lambda p, out: tar(p, ("set/a", tarfile.CHRTYPE, "")), "device"),
    "ten thousand files": (lambda p, out: tar(p, *((f"set/{k}", FILE, "") for k in range(10_001))), "10000 files"),
    "thousand to one": (lambda p, out: zipped(p, ("set/a", bytes(10**7))), "times its own size"),
    "zip goes up": (lambda p, out: zipped(p, ("set/a", "x"), ("set/../../evil", "x")), "outside"),
    "zip with a link": (lambda p, out: zipped(p, ("set/a", str(out)), mode=0o120777), "symbolic link"),
}


def test_there_are_ten_evil_archives():
    assert len(EVIL) == 10


@pytest.mark.parametrize("kind", EVIL)
def test_evil_archives_are_refused_and_write_nothing(tmp_path, kind):
    make, reason = EVIL[kind]
    out, place = tmp_path / "out", tmp_path / "data" / "set"
    out.mkdir()
    (tmp_path / "secret").write_text("secret")
    make(tmp_path / "archive", out)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(IntegrityError, match=reason):
        archives.unpack(tmp_path / "archive", place, inside="set", most_files=10_000)
    assert sorted(tmp_path.rglob("*")) == sorted([*before, tmp_path / "data"])
    assert not list((tmp_path / "data").iterdir())
    assert (tmp_path / "secret").read_text() == "secret"


@pytest.mark.parametrize("name", ["C:/evil", "a\\..\\evil", "/evil", "a/../../evil", ".."])
def test_names_that_go_out_elsewhere_are_known(name):
    assert archives.goes_out(name)


@pytest.mark.parametrize("name", ["a/b.jpg", "..a/b..", "a/./b", "a-b (1).png"])
def test_plain_names_stay_in(name):
    assert not archives.goes_out(name)


@pytest.mark.parametrize("suffix", [".tar.gz", ".zip"])
def test_good_archives_appear_whole_and_cut_ones_not_at_all(tmp_path, suffix):
    source = tmp_path / "source"
    (source / "b").mkdir(parents=True)
    (source / "a.bin").write_bytes(CONTENT)
    (source / "b" / "c.bin").write_bytes(CONTENT[:99])
    path = tmp_path / f"archive{suffix}"
    path.write_bytes(archive_of(source, "top", suffix))
    archives.unpack(path, tmp_path / "data" / "set", inside="top")
    assert (tmp_path / "data" / "set" / "a.bin").read_bytes() == CONTENT
    assert (tmp_path / "data" / "set" / "b" / "c.bin").read_bytes() == CONTENT[:99]
    archives.unpack(path, tmp_path / "data" / "all")
    assert [p.name for p in (tmp_path / "data" / "all").iterdir()] == ["top"]
    with pytest.raises(IntegrityError, match="no folder 'other'; it has top"):
        archives.unpack(path, tmp_path / "data" / "other", inside="other")
    path.write_bytes(path.read_bytes()[:300_000])
    with pytest.raises(IntegrityError, match="can't be unpacked"):
        archives.unpack(path, tmp_path / "data" / "cut", inside="top")
    assert sorted(p.name for p in (tmp_path / "data").iterdir()) == ["all", "set"]


def test_a_folder_that_can_not_be_written_is_named(tmp_path, monkeypatch):
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a").write_bytes(b"a")
    path = tmp_path / "archive.zip"
    path.write_bytes(archive_of(tmp_path / "source", "top", ".zip"))

    def refuse(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(archives.os, "replace", refuse)
    with pytest.raises(VitplastError, match=r"could not be unpacked into .*set.*No space"):
        archives.unpack(path, tmp_path / "data" / "set", inside="top")
    assert not list((tmp_path / "data").iterdir())
