"""What a device can do at most, as its maker states it; read at second hand, the data sheets were not opened."""

from typing import Literal, NamedTuple

Device = Literal["h200", "h100", "a100", "cpu"]

PEAK_FRACTION = 0.4
"""Share of its peak that a device is taken to reach, where none is stated; an assumption, not a measurement."""


class Accelerator(NamedTuple):
    """One device."""

    title: str
    source: str
    """Where its numbers stand."""
    bf16_tflops: float | None
    """Dense, half of what is stated with sparsity; `None` where no maker states a rate."""
    fp32_tflops: float | None
    """Without TF32, which training does not switch on."""
    memory_gb: float | None
    """In 10^9 bytes; `None` where it is the machine's."""
    device_type: Literal["cuda", "cpu"] = "cuda"

    def peak_tflops(self, precision: Literal["fp32", "bf16"]) -> float | None:
        """The most floating point operations in a second, in 10^12."""
        return self.bf16_tflops if precision == "bf16" else self.fp32_tflops


ACCELERATORS: dict[Device, Accelerator] = {
    "h200": Accelerator("H200 SXM", "NVIDIA's figures, at second hand", 989.5, 67.0, 141.0),
    "h100": Accelerator("H100 SXM", "NVIDIA's figures, at second hand", 989.5, 67.0, 80.0),
    "a100": Accelerator("A100 SXM 80 GB", "NVIDIA's figures, at second hand", 312.0, 19.5, 80.0),
    "cpu": Accelerator("CPU", "nobody", None, None, None, "cpu"),
}
