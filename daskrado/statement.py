"""The privacy statement that travels with everything daskrado publishes."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from daskrado.relations import Relation

NOT_PRIVATE = "NOT PRIVATE: no noise was added; this object gives no differential privacy guarantee"


class PrivacyStatement(BaseModel):
    """What is protected, for whom, by how much, and which theorem says so.

    A statement is either differentially private, with every field filled in, or says plainly that it is not.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    private: bool
    relation: Relation | None = None
    unit: str = Field(default="", description="who is protected, in words")
    rows_per_unit: int = Field(default=1, ge=1)
    epsilon: float | None = Field(default=None, gt=0)
    delta: float | None = Field(default=None, ge=0, lt=1)
    mechanism: str = ""
    theorem: str = ""
    accountant: str = ""
    assumptions: tuple[str, ...] = ()
    schema_version: Literal[1] = 1

    @model_validator(mode="after")
    def _complete(self) -> PrivacyStatement:
        if self.private:
            missing = [
                name
                for name in ("relation", "unit", "epsilon", "delta", "mechanism", "theorem", "accountant")
                if getattr(self, name) in (None, "")
            ]
            if missing:
                raise ValueError(f"a private statement needs {', '.join(missing)}")
        return self

    def sentence(self) -> str:
        """The statement as one sentence for people."""
        if not self.private:
            return NOT_PRIVATE
        assert self.relation is not None
        guarantee = f"epsilon = {self.epsilon:g}" + (f", delta = {self.delta:g}" if self.delta else "")
        return f"Differentially private for {self.unit} ({self.relation.meaning}): {guarantee}."

    @classmethod
    def none(cls) -> PrivacyStatement:
        """The statement of a baseline without any protection."""
        return cls(private=False)
