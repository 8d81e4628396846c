"""The card of a job: what its owner says of it, which no computation can find out."""

from __future__ import annotations

import datetime

from pydantic import Field

from daskrado.table.yaml_file import Frozen


class Card(Frozen):
    """Printed at the head of the report and kept in the manifest; all of it is public and optional."""

    purpose: str | None = Field(default=None, max_length=2000, description="what the result is for, and what not")
    contact: str | None = Field(default=None, max_length=500, description="who answers questions")
    date: datetime.date | None = Field(default=None, description="of the data or of the decision, not of the run")
    data_version: str | None = Field(default=None, max_length=500, description="which data: an export, a snapshot")
    lawful_basis: str | None = Field(default=None, max_length=2000, description="why the rows may be used for this")

    def rows(self) -> list[tuple[str, str]]:
        """The fields that are given, in words."""
        return [(key.replace("_", " "), str(value)) for key, value in self if value is not None]
