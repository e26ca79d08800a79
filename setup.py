"""Builds the compiled chain kernel and the loops that choose boxes: plain C, the C library alone, optional.

Where there is no compiler the build goes on without them and the pure-torch paths serve.
"""

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext


class BuildKernel(build_ext):
    def get_export_symbols(self, ext: Extension) -> list[str]:
        return ext.export_symbols  # loaded by ctypes, not imported: there is no PyInit to export


FLAGS = ["-O3", "-std=gnu11", "-fno-math-errno", "-fno-trapping-math"]

setup(
    cmdclass={"build_ext": BuildKernel},
    ext_modules=[
        Extension(
            "phrasechain.chain._kernel",
            sources=["src/phrasechain/chain/kernel.c"],
            depends=["src/phrasechain/chain/kernel_steps.h", "src/phrasechain/chain/kernel_second_order.h"],
            extra_compile_args=[*FLAGS, "-pthread", "-Wno-psabi"],
            extra_link_args=["-pthread", "-lm"],
            optional=True,
        ),
        Extension(
            "phrasechain.regions._nms",
            sources=["src/phrasechain/regions/nms.c"],
            extra_compile_args=[*FLAGS, "-ffp-contract=off"],  # overlaps to the bit as torch has them
            extra_link_args=["-lm"],
            optional=True,
        ),
    ],
)
