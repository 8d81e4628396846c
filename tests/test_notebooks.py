"""The notebooks run from top to bottom, as a reader would run them, each with a ledger of its own."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[1] / "pipelines" / "notebooks").glob("*.ipynb"))


def test_there_is_one_of_the_estimators_and_one_of_each_tool_beside() -> None:
    assert {path.stem for path in NOTEBOOKS} == {"estimators", "mlflow", "skops"}
    for path in NOTEBOOKS:  # as they are kept: what they show comes from whoever runs them
        assert all(not cell.get("outputs") for cell in nbformat.read(path, as_version=4).cells)


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, own_ledger: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert own_ledger.exists()
    shown = [out for cell in notebook.cells if cell.cell_type == "code" for out in cell.outputs]
    assert shown
    assert not [out for out in shown if out.output_type == "error"]
