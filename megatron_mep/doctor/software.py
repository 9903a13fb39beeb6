"""Python, the packages against the versions that are asked for, and what they find of devices and networks."""

import platform
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement

from megatron_mep.doctor.finding import Finding, ok, red, warn

PACKAGE = "megatron-mep"
OLDEST_PYTHON = (3, 11)
SHOWN = ("torch", "megatron-core", "deepspeed")
"""The packages that are told even where nothing is wrong with them."""


def software() -> Iterator[Finding]:
    """Everything about software but attention, which is tried."""
    yield python()
    yield from packages()
    yield from torch_and_devices()


def python(found: tuple[int, ...] = sys.version_info[:3]) -> Finding:
    """The interpreter."""
    told = ".".join(map(str, found))
    if found < OLDEST_PYTHON:
        return red("Python", f"{told} is too old", "make an environment with Python 3.11 or newer")
    return ok("Python", f"{told} on {platform.platform()}")


def packages() -> Iterator[Finding]:
    """What is installed, against what this version was made for."""
    try:
        asked = [Requirement(text) for text in requires(PACKAGE) or ()]
    except PackageNotFoundError:
        yield red("packages", f"{PACKAGE} is not installed", "pip install --editable . in its folder")
        return
    for requirement in asked:
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield from package(requirement)


def package(requirement: Requirement) -> Iterator[Finding]:
    """One that is asked for; nothing where it is as asked for and not told."""
    name, wanted = requirement.name, str(requirement.specifier)
    remedy = f"pip install --constraint constraints.txt '{name}{wanted}'"
    try:
        found = version(name)
    except PackageNotFoundError:
        yield red(name, "is not installed", remedy)
        return
    if not requirement.specifier.contains(found, prereleases=True):
        yield red(name, f"is {found} and must be {wanted}", remedy)
    elif name in SHOWN:
        yield ok(name, f"{found} ({wanted})")


def torch_and_devices() -> Iterator[Finding]:
    """Devices, and by what ranks would talk to each other."""
    try:
        import torch
        from torch import distributed
    except (ImportError, OSError) as error:
        yield red("torch", f"cannot be imported: {error}", "install it anew, for this machine's CUDA or for its CPU")
        return
    if torch.cuda.is_available():
        names = sorted({torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())})
        yield ok("devices", f"{torch.cuda.device_count()} x {', '.join(names)}, CUDA {torch.version.cuda}")
        if distributed.is_nccl_available():
            yield ok("communication", f"NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}")
        else:
            yield red("communication", "this torch has no NCCL", "install a torch that was built with it")
    else:
        built = f"torch was built for CUDA {torch.version.cuda}" if torch.version.cuda else "torch was built for CPUs"
        told = f"no GPU is visible ({built}): training runs on the CPU"
        if torch.version.cuda:
            yield warn("devices", told, "look at nvidia-smi and CUDA_VISIBLE_DEVICES, unless that is meant")
        else:
            yield ok("devices", told)
        gloo = distributed.is_available() and distributed.is_gloo_available()
        yield ok("communication", "gloo") if gloo else red("communication", "this torch has no gloo", "install another")
