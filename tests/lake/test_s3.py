"""Lakes on S3: a real server process on loopback, and a network that drops connections."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import daskrado
from daskrado.errors import DataError, UsageError
from daskrado.lake.files import find_files, remote, shown
from daskrado.lake.growing import compact_lake
from daskrado.lake.ingest import Layout, ingest
from daskrado.ledger.ledger import Ledger
from daskrado.table.domain import Domain

pytestmark = pytest.mark.slow

Clinic = Callable[..., tuple[Path, Domain]]


class Proxy:
    """Forwards connections to a port; hangs up after ``cut_after`` bytes of answers on one of them, ``cuts`` times.

    ``lifetime`` is the number of bytes after which it hangs up on everybody.
    """

    def __init__(self, port: int) -> None:
        self.target = port
        self.cut_after = 0
        self.cuts = 0
        self.lifetime = 1 << 40
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self.target))
            threading.Thread(target=self._pump, args=(near, far, False), daemon=True).start()
            threading.Thread(target=self._pump, args=(far, near, True), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        passed = 0
        try:
            while data := source.recv(1 << 14):
                passed += len(data)
                self.lifetime -= len(data)
                if self.lifetime < 0:
                    break
                if answers and self.cuts > 0 and passed > self.cut_after:
                    self.cuts -= 1
                    break
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        source.close()  # each end is the source of one pump


SERVER = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def server() -> Iterator[int]:
    """The port of a server in a process of its own; the system chose it, so that nobody else has it."""
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([sys.executable, "-c", SERVER], env=os.environ, **pipes) as process:
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


@pytest.fixture
def bucket(server: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., str]:
    """``bucket(path, port)``: an address in a new bucket, reached through a port."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    name = f"b{uuid.uuid4().hex}"

    def address(path: str, port: int = server) -> str:
        return f"s3://{name}/{path}?region=us-east-1&scheme=http&endpoint_override=127.0.0.1%3A{port}"

    made, _ = remote(address("x") + "&allow_bucket_creation=true")
    made.create_dir(name)
    return address


def fit(lake: str | Path, domain: Domain, **options: Any) -> Any:
    return daskrado.fit(lake, domain, dataset="clinic", workers=0, **options)


@pytest.fixture
def table(clinic: Clinic, tmp_path: Path) -> tuple[str, Domain, Any]:
    """A CSV of clinic rows, its Domain, and the weights learned from the same rows on this machine."""
    import pandas as pd

    path, domain = clinic(3000, 3)
    frame = pd.concat([pd.read_parquet(p) for p in sorted(path.glob("*.parquet"))], ignore_index=True)
    frame.to_csv(tmp_path / "clinic.csv.gz", index=False)
    return str(tmp_path / "clinic.csv.gz"), domain, fit(path, domain, private=False).model.weights


def test_a_lake_on_s3_gives_the_same_bits_also_over_a_network_that_drops_connections(
    table: tuple[str, Domain, Any], bucket: Callable[..., str], server: int, own_ledger: Path
) -> None:
    source, domain, expected = table
    ingest([source], bucket("lake"), layout=Layout(group_rows=500, file_rows=1000))
    assert len(find_files(bucket("lake"))) == 3
    assert np.array_equal(fit(bucket("lake"), domain, private=False).model.weights, expected)
    proxy = Proxy(server)
    proxy.cut_after, proxy.cuts = 3000, 2
    assert np.array_equal(fit(bucket("lake", proxy.port), domain, private=False).model.weights, expected)
    assert proxy.cuts == 0  # both were cut, and both were tried again

    def lose(done: int, total: int) -> None:
        proxy.lifetime = 0

    with pytest.raises(DataError, match=r"part-\w+-0000\d\.parquet: cannot be re") as caught:
        fit(bucket("lake", proxy.port), domain, epsilon=1.0, delta=1e-6, first_limit=(5.0, 1e-5), progress=lose)
    assert "\n" not in str(caught.value)
    assert [str(entry.state) for entry in Ledger.open(own_ledger).entries()] == ["void"]
    proxy.listener.close()


def test_text_on_s3_can_be_ingested(
    table: tuple[str, Domain, Any], bucket: Callable[..., str], tmp_path: Path
) -> None:
    source, domain, expected = table
    filesystem, path = remote(bucket("raw/clinic.csv.gz"))
    with filesystem.open_output_stream(path, compression=None) as stream:
        stream.write(Path(source).read_bytes())
    ingest([bucket("raw/clinic.csv.gz")], str(tmp_path / "lake"))
    assert np.array_equal(fit(tmp_path / "lake", domain, private=False).model.weights, expected)


def test_an_ingestion_that_loses_its_connection_leaves_no_lake(
    table: tuple[str, Domain, Any], bucket: Callable[..., str], server: int
) -> None:
    source, _, _ = table
    proxy = Proxy(server)
    proxy.lifetime = 60_000  # some of the thirty files
    with pytest.raises(DataError, match="cannot be written") as caught:
        ingest([source], bucket("lake", proxy.port), layout=Layout(group_rows=100, file_rows=100))
    assert "\n" not in str(caught.value)
    proxy.listener.close()
    with pytest.raises(DataError, match="is being written"):
        find_files(bucket("lake"))
    ingest([source], bucket("lake"), overwrite=True)
    assert len(find_files(bucket("lake"))) == 1


def test_a_failed_ingestion_leaves_the_older_lake_as_it_was(
    table: tuple[str, Domain, Any], bucket: Callable[..., str]
) -> None:
    source, domain, expected = table
    ingest([source], bucket("lake"))
    before = [(f.path, f.size) for f in find_files(bucket("lake"))]
    with pytest.raises(UsageError, match="exists; choose another") as caught:
        ingest([source], bucket("lake"))
    assert "endpoint" not in str(caught.value)  # options and keys in an address are never printed
    with pytest.raises(UsageError, match="more than 256 values"):  # found while it writes
        ingest([source], bucket("lake"), layout=Layout(by="patient_id"), overwrite=True)
    assert [(f.path, f.size) for f in find_files(bucket("lake"))] == before
    ingest([source], bucket("lake"), layout=Layout(file_rows=1500, group_rows=500), overwrite=True)
    assert len(find_files(bucket("lake"))) == 2
    assert np.array_equal(fit(bucket("lake"), domain, private=False).model.weights, expected)


def test_keys_in_an_address_are_never_printed() -> None:
    assert shown("s3://KEY:SECRET@bucket/a/b?x=1") == "s3://bucket/a/b"
    assert shown("/a/b?c") == "/a/b?c"
    with pytest.raises(DataError) as caught:
        find_files("file://KEY:SECRET@/nowhere/at/all")
    assert "SECRET" not in str(caught.value)


def test_a_delta_table_on_s3_is_read_by_its_log(bucket: Callable[..., str], server: int, clinic: Clinic) -> None:
    import pyarrow.parquet as pq
    from deltalake import DeltaTable, write_deltalake

    path, domain = clinic(300, 2)
    rows = pq.read_table(sorted(path.glob("*.parquet"))[0])
    address = bucket("visits")
    place = address.partition("?")[0]
    options = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{server}", "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1"}
    options |= {"AWS_S3_ALLOW_UNSAFE_RENAME": "true"}
    write_deltalake(place, rows, storage_options=options)
    write_deltalake(place, rows.slice(0, 40), mode="overwrite", storage_options=options)
    assert DeltaTable(place, storage_options=options).version() == 1
    for source, count in ((address, 40), ({"delta": address, "version": 0}, rows.num_rows)):
        assert fit(source, domain, private=False).rows == count


def test_a_lake_on_s3_grows_and_is_compacted(
    table: tuple[str, Domain, Any], bucket: Callable[..., str], tmp_path: Path, own_ledger: Path
) -> None:
    import pandas as pd

    source, domain, weights = table
    frame = pd.read_csv(source)
    parts = [str(tmp_path / f"{i}.csv") for i in range(3)]
    for i, part in enumerate(parts):
        frame[i * 1000 : (i + 1) * 1000].to_csv(part, index=False)
    out = bucket("lake")
    ingest(parts[:1], out)
    for part in parts[1:]:
        ingest([part], out, append=True)
    assert (fit(out, domain, private=False).model.weights == weights).all()
    assert compact_lake(out) == (3, 1)
    assert (fit(out, domain, private=False).model.weights == weights).all()
    filesystem, folder = remote(out)
    with filesystem.open_output_stream(f"{folder}/_appending-0") as stream:
        stream.write(b"")
    with pytest.raises(
        UsageError, match=r"another process is adding to this lake, or was cut off.*remove _appending-0"
    ):
        ingest(parts[:1], out, append=True)
