"""The signature key on workers. A module of its own: only a job that has workers imports Dask."""

from __future__ import annotations

from distributed import WorkerPlugin

from daskrado.lake.row_store import RowStore


class KeyPlugin(WorkerPlugin):  # type: ignore[misc]
    """Brings the signature key to every worker, also to one that joins later, and holds the rows kept there."""

    def __init__(self, name: str, material: bytes, store: RowStore) -> None:
        self.name = name
        self.material = material
        self.store = store

    def __repr__(self) -> str:
        return "<key plugin>"
