"""Test what is known of the processor."""

import pytest

from geoprep.cpus import instruction_sets

XEON = (
    "processor\t: 0\nflags\t\t: fpu sse avx2 avx512f avx512_vnni avx512_bf16 amx_bf16\nbugs : x\n"
)
LAPTOP = "processor\t: 0\nflags\t\t: fpu sse avx2\n"
GRAVITON = "processor : 0\nFeatures : fp asimd sve bf16\n"


@pytest.mark.parametrize(
    ("cpuinfo", "expected"),
    [
        (XEON, ("AVX2", "AVX512", "AVX512_VNNI", "AVX512_BF16", "AMX_BF16")),
        (LAPTOP, ("AVX2",)),
        (GRAVITON, ("SVE", "BF16")),
        ("", ()),
    ],
)
def test_instruction_sets_are_read_from_the_kernel(cpuinfo, expected):
    assert instruction_sets(cpuinfo) == expected
