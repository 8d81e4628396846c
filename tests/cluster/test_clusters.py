"""Every kind of cluster in cluster/: real schedulers and workers, real certificates, a real SLURM."""

from __future__ import annotations

import json
import os
import shutil
import socket
import ssl
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import yaml
from cryptography import x509

import daskrado
from daskrado.cluster import ClusterConfig, cluster_config, connect
from daskrado.cluster.certificates import make_certificates
from daskrado.errors import ClusterError, UsageError
from daskrado.table.domain import Domain
from daskrado.table.yaml_file import parse

Clinic = Callable[..., tuple[Path, Domain]]
CONFIGURATIONS = Path(__file__).parents[2] / "cluster"


@contextmanager
def dask_process(*words: str, ready: str) -> Iterator[str]:
    """A `dask` command as a process of its own, from the line that says it is ready until the block ends."""
    command = [sys.executable, "-m", "dask", *words]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=os.environ)
    assert process.stderr is not None
    try:
        line = next((line for line in process.stderr if ready in line), None)
        assert line is not None, f"dask {words} ended before it was ready"
        yield line.split()[-1]
    finally:
        process.terminate()
        process.communicate(timeout=300)


def baseline(clinic: Clinic, cluster: ClusterConfig | None) -> Any:
    path, domain = clinic(3000, 7)
    where: dict[str, Any] = {"workers": 0} if cluster is None else {"cluster": cluster}
    return daskrado.fit(path, domain, dataset="clinic", private=False, **where).model.weights


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls") / "certificates"
    made = make_certificates(folder)
    assert {p.name for p in made} == {
        f"{n}{k}.pem" for n in ("ca", "scheduler", "worker", "client") for k in ("", "-key")
    }
    return folder


def tls_files(folder: Path, node: str) -> list[str]:
    pairs = {"ca-file": "ca", "cert": node, "key": f"{node}-key"}
    return [word for name, file in pairs.items() for word in (f"--tls-{name}", str(folder / f"{file}.pem"))]


@pytest.fixture(scope="module")
def tls_scheduler(certificates: Path) -> Iterator[str]:
    with ExitStack() as stack:
        start = ("scheduler", "--protocol", "tls://", "--host", "127.0.0.1", "--port", "0", "--no-dashboard")
        address = stack.enter_context(
            dask_process(*start, *tls_files(certificates, "scheduler"), ready="Scheduler at:")
        )
        assert address.startswith("tls://")
        stack.enter_context(
            dask_process(
                "worker", address, "--nthreads", "1", "--no-dashboard", *tls_files(certificates, "worker"),
                ready="Registered to:",
            )
        )  # fmt: skip
        yield address


def tls_config(address: str, folder: Path, node: str = "client", **more: Any) -> ClusterConfig:
    return ClusterConfig(
        kind="scheduler",
        address=address,
        require_encryption=True,
        tls_ca_file=str(folder / "ca.pem"),
        tls_client_cert=str(folder / f"{node}.pem"),
        tls_client_key=str(folder / f"{node}-key.pem"),
        **more,
    )


@pytest.mark.cluster
def test_tls_gives_the_same_bits_and_refuses_strangers(
    clinic: Clinic, certificates: Path, tls_scheduler: str, tmp_path: Path
) -> None:
    here = baseline(clinic, None)
    assert np.array_equal(baseline(clinic, tls_config(tls_scheduler, certificates)), here)
    with pytest.raises(UsageError, match="wants a certificate"):
        baseline(clinic, ClusterConfig(kind="scheduler", address=tls_scheduler))
    plain = tls_scheduler.replace("tls://", "tcp://")
    with pytest.raises(ClusterError, match="not reachable"):
        baseline(clinic, ClusterConfig(kind="scheduler", address=plain, connect_timeout=2))
    strangers = tmp_path / "strangers"
    make_certificates(strangers, nodes=["client"])
    shutil.copy(certificates / "ca.pem", strangers / "ca.pem")  # trusts the scheduler, is not trusted by it
    with pytest.raises(ClusterError, match="certificate was refused"):
        baseline(clinic, tls_config(tls_scheduler, strangers, connect_timeout=2))


@pytest.mark.cluster
def test_a_socket_without_a_certificate_is_hung_up_on(certificates: Path, tls_scheduler: str) -> None:
    """Below Dask's own client: the scheduler itself ends the handshake of somebody without a certificate."""
    host, port = tls_scheduler.removeprefix("tls://").split(":")
    context = ssl.create_default_context(cafile=str(certificates / "ca.pem"))
    with pytest.raises((ssl.SSLError, ConnectionError)):
        greeting(host, int(port), context)
    context.load_cert_chain(certificates / "client.pem", certificates / "client-key.pem")
    assert greeting(host, int(port), context)  # the certificate names the host, too


def greeting(host: str, port: int, context: ssl.SSLContext) -> bytes:
    """The first byte that a scheduler says; TLS 1.3 refuses a client after the client's own handshake is done."""
    with (
        socket.create_connection((host, port), timeout=300) as raw,
        context.wrap_socket(raw, server_hostname=host) as wrapped,
    ):
        return wrapped.recv(1)


def test_require_encryption_refuses_a_scheduler_in_the_clear(clinic: Clinic, tmp_path: Path) -> None:
    for where in ({"address": "tcp://127.0.0.1:1"}, {"scheduler_file": str(tmp_path / "s.json")}):
        (tmp_path / "s.json").write_text(json.dumps({"address": "tcp://127.0.0.1:1"}))
        with pytest.raises(UsageError, match="is not encrypted, and encryption is required"):
            baseline(clinic, ClusterConfig(kind="scheduler", require_encryption=True, **where))  # type: ignore[arg-type]


def test_certificates_are_what_they_should_be(certificates: Path, tmp_path: Path) -> None:
    ca, worker = (x509.load_pem_x509_certificate((certificates / f"{n}.pem").read_bytes()) for n in ("ca", "worker"))
    worker.verify_directly_issued_by(ca)
    assert ca.extensions.get_extension_for_class(x509.BasicConstraints).value == x509.BasicConstraints(True, 0)
    assert not worker.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    for key in certificates.glob("*-key.pem"):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    with pytest.raises(UsageError, match="exists"):
        make_certificates(certificates)
    with pytest.raises(UsageError, match="--days"):
        make_certificates(tmp_path / "c", days=0)
    with pytest.raises(UsageError, match="--node"):
        make_certificates(tmp_path / "c", nodes=["../x"])
    assert not (tmp_path / "c").exists()


def test_certificates_come_from_the_command_line(tmp_path: Path) -> None:
    words = ["cluster", "certificates", str(tmp_path / "c"), "--node", "hub", "--host", "hub.example.org"]
    subprocess.run(
        [sys.executable, "-c", "from daskrado.cli.main import main; main()", *words], check=True, env=os.environ
    )
    names = x509.load_pem_x509_certificate((tmp_path / "c" / "hub.pem").read_bytes()).extensions
    found = names.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(x509.DNSName)
    assert found == ["hub.example.org"]


def test_missing_certificates_are_named(clinic: Clinic, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cluster\.tls_ca_file: .*no such file"):
        baseline(clinic, tls_config("tls://127.0.0.1:1", tmp_path / "nowhere"))
    with pytest.raises(UsageError, match="come together"):
        parse(ClusterConfig, {"tls_ca_file": "x"}, "cluster")


@pytest.mark.cluster
def test_a_scheduler_file_is_followed_and_a_report_of_tasks_saved(clinic: Clinic, tmp_path: Path) -> None:
    file = tmp_path / "scheduler.json"
    start = ("scheduler", "--scheduler-file", str(file), "--host", "127.0.0.1", "--port", "0", "--no-dashboard")
    with (
        dask_process(*start, ready="Scheduler at:"),
        dask_process("worker", "--scheduler-file", str(file), "--no-dashboard", ready="Registered to:"),
    ):
        report = tmp_path / "performance.html"
        config = ClusterConfig(kind="scheduler", scheduler_file=str(file), performance_report=str(report))
        assert np.array_equal(baseline(clinic, config), baseline(clinic, None))
    page = report.read_text()
    assert "daskrado-partial" in page
    assert "<html" in page


def test_scheduler_files_that_cannot_be_used_are_named(clinic: Clinic, tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text("{}")
    for name, message in (("none.json", "no such file"), ("s.json", "holds no address")):
        with pytest.raises(ClusterError, match=message):
            baseline(clinic, ClusterConfig(kind="scheduler", scheduler_file=str(tmp_path / name)))


@pytest.mark.parametrize("file", ["local.yaml", "scheduler.yaml", "scheduler_file.yaml", "slurm.yaml", "tls.yaml"])
def test_every_configuration_is_valid_and_says_how_it_is_started(file: str) -> None:
    assert cluster_config(cluster=str(CONFIGURATIONS / file)).kind in ("local", "scheduler", "slurm")
    assert f"--cluster cluster/{file}" in (CONFIGURATIONS / file).read_text()


def test_the_kubernetes_manifest_fits_the_operators_schema() -> None:
    text = (CONFIGURATIONS / "kubernetes.yaml").read_text()
    assert "kubectl apply -f cluster/kubernetes.yaml" in text
    manifest = yaml.safe_load(text)
    assert (manifest["apiVersion"], manifest["kind"]) == ("kubernetes.dask.org/v1", "DaskCluster")
    schema = json.loads((Path(__file__).parent / "daskcluster.schema.json").read_text())
    checker = jsonschema.Draft202012Validator(_closed(schema))
    checker.validate({"spec": manifest["spec"]})
    broken = json.loads(json.dumps(manifest["spec"]).replace('"replicas": 2', '"replicas": "two"'))
    assert not checker.is_valid({"spec": broken})
    misspelt = json.loads(json.dumps(manifest["spec"]).replace("securityContext", "securtyContext"))
    assert not checker.is_valid({"spec": misspelt})
    names = [{key: manifest["spec"][key]["spec"]["containers"][0]["name"]} for key in ("worker", "scheduler")]
    assert names == [{"worker": "worker"}, {"scheduler": "scheduler"}]


def _closed(schema: Any) -> Any:
    """The schema with unknown keys refused, as `kubectl --validate=strict` does."""
    if isinstance(schema, list):
        return [_closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        closed.setdefault("additionalProperties", False)
    if schema.get("x-kubernetes-int-or-string"):
        closed["type"] = ["integer", "string"]
    return closed


@pytest.mark.cluster
def test_local_workers_can_be_encrypted(clinic: Clinic) -> None:
    config = ClusterConfig(kind="local", workers=1, require_encryption=True)
    with connect(config) as client:
        assert client is not None
        assert client.scheduler.address.startswith("tls://")
        assert client.submit(sum, [1, 2]).result() == 3


@pytest.mark.cluster
def test_a_script_without_a_guard_may_ask_for_workers(clinic: Clinic, tmp_path: Path) -> None:
    path, _ = clinic(3000, 7)
    script = tmp_path / "plain.py"
    script.write_text(
        "import os, signal, daskrado\nfrom daskrado.cluster import ClusterConfig, connect\n"
        f"result = daskrado.fit({str(path)!r}, {f'{path}.yaml'!r}, dataset='clinic', private=False, workers=2)\n"
        "with connect(ClusterConfig(kind='local', workers=1)) as client:\n"
        "    for pid in client.run(os.getpid).values():\n        os.kill(pid, signal.SIGKILL)\n"
        "    print(client.submit(lambda: len(result.model.weights), pure=False).result(), __spec__)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=600, env=os.environ)
    assert (done.stdout, done.stderr) == (f"{len(baseline(clinic, None))} None\n", "")


def test_slurm_needs_a_login_node_and_encryption_needs_certificates(
    clinic: Clinic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ClusterError, match="no sbatch on the PATH"):
        baseline(clinic, ClusterConfig(kind="slurm"))
    with pytest.raises(UsageError, match="require_encryption with slurm needs"):
        baseline(clinic, ClusterConfig(kind="slurm", require_encryption=True))
