"""Compile Triton kernels for devices that are not here, and read what they use from the machine code.

Under the interpreter the kernels of this process cannot be compiled, so a child process does it. Nothing is
run. `cuobjdump` comes with Triton.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import NamedTuple

CAPABILITIES = (80, 89, 90, 120)
PDL_CAPABILITY = 90


class Case(NamedTuple):
    """One kernel with the types and constants that it is compiled for.

    `types` in the order of the parameters: "*fp32", "*bf16", "*i32", "i32", "i64", "fp32" ... Pointers are
    taken to be aligned to 16 bytes. `constants` are all constexpr parameters but PDL.
    """

    module: str  # such as "ftagent.engine.kernels.gpu.linear"
    kernel: str
    types: tuple[str, ...]
    constants: dict[str, int | float | bool | str | None]
    warps: int = 4
    stages: int = 3


class Usage(NamedTuple):
    """What one kernel takes on one capability; stack and local are bytes a thread (0: nothing
    spilled), shared bytes a program."""

    case: str
    capability: int
    registers: int
    stack: int
    local: int
    shared: int


def cuobjdump() -> Path | None:
    """The disassembler that Triton ships, or None."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    return tool if tool.exists() else None


def compile_all(cases: Sequence[Case], capabilities: Sequence[int] = CAPABILITIES) -> list[Usage]:
    """Compile every case for every capability, with PDL where the capability has it."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    request = json.dumps([list(capabilities), [case._asdict() for case in cases]])
    child = subprocess.run(
        [sys.executable, "-m", __name__], input=request, env=environment, text=True, capture_output=True
    )
    assert child.returncode == 0, child.stderr[-4000:]
    return [Usage(*line) for line in json.loads(child.stdout)]


def assert_no_spills(cases: Sequence[Case], capabilities: Sequence[int] = CAPABILITIES) -> None:
    """Fail with the numbers of every kernel that keeps registers in memory."""
    used = compile_all(cases, capabilities)
    assert len(used) == len(cases) * len(capabilities)
    assert [line for line in used if line.stack or line.local] == []


def compile_case(case: Case, capability: int) -> tuple[bytes, int]:
    """The cubin of one case and the bytes of shared memory. For a process that does not interpret."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = getattr(import_module(case.module), case.kernel)
    constants = {**case.constants, "PDL": capability >= PDL_CAPABILITY}
    types = iter(case.types)
    signature = {name: "constexpr" if name in constants else next(types) for name in kernel.arg_names}
    assert next(types, None) is None, f"{case.kernel}: more types than parameters"
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, kind in enumerate(signature.values())
        if kind.startswith("*")
    }
    source = ASTSource(kernel, signature, constants, aligned)
    options = {"num_warps": case.warps, "num_stages": case.stages}
    compiled = triton.compile(source, GPUTarget("cuda", capability, 32), options)
    return compiled.asm["cubin"], compiled.metadata.shared


def usage(case: Case, capability: int, tool: Path) -> Usage:
    """Compile one case and read its resources."""
    cubin, shared = compile_case(case, capability)
    with NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run(
            [tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    name = f"{case.kernel}{case.constants}"
    fields = {key: int(value) for key, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", text)}
    return Usage(name, capability, fields["REG"], fields["STACK"], fields["LOCAL"], shared)


def main() -> None:
    capabilities, cases = json.load(sys.stdin)
    tool = cuobjdump()
    assert tool is not None, "no cuobjdump beside Triton"
    lines = [
        usage(Case(**{**case, "types": tuple(case["types"])}), capability, tool)
        for case in cases
        for capability in capabilities
    ]
    sys.stdout.write(json.dumps(lines))


if __name__ == "__main__":
    main()
