"""Build hook: ships the native library ready to load in wheels, when FTAGENT_PREBUILT is set to 1.

A wheel without it is for every platform and has the library compiled on first use; `pip install` is then no
slower than copying files. Editable installs never compile. Needs nothing but hatchling and ftagent's sources.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PLACE = "ftagent/engine/machine/native"


class NativeLibrary(BuildHookInterface):  # type: ignore[type-arg]
    """Compiles beside the tree, so that a checkout stays as it is."""

    room: str | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """`version` is "standard" or "editable". Without a compiler the wheel goes without the library."""
        if version == "editable" or os.environ.get("FTAGENT_PREBUILT") != "1":
            return
        sys.path.insert(0, self.root)
        try:
            from ftagent.engine.machine import native
        finally:
            sys.path.remove(self.root)
        self.room = tempfile.mkdtemp(prefix="ftagent-build-")
        try:
            library = native.build_into(Path(self.room))
        except native.BuildFailed as error:
            self.app.display_warning(f"no native library in this wheel, it is compiled on first use: {error}")
            return
        build_data["force_include"][str(library)] = f"{PLACE}/{library.name}"
        build_data["pure_python"] = False
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if self.room is not None:
            shutil.rmtree(self.room, ignore_errors=True)
