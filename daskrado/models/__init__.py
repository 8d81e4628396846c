"""What is published: linear models, their SQL, files of rados."""

from __future__ import annotations
