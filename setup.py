"""Builds the compiled chain kernel: plain C, linked against the C library alone, optional.

Where there is no compiler the build goes on without it and the pure-torch path serves.
"""

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext


class BuildKernel(build_ext):
    def get_export_symbols(self, ext: Extension) -> list[str]:
        return ext.export_symbols  # loaded by ctypes, not imported: there is no PyInit to export


setup(
    cmdclass={"build_ext": BuildKernel},
    ext_modules=[
        Extension(
            "phrasechain.chain._kernel",
            sources=["src/phrasechain/chain/kernel.c"],
            depends=["src/phrasechain/chain/kernel_steps.h"],
            extra_compile_args=["-O3", "-std=gnu11", "-pthread", "-fno-math-errno", "-fno-trapping-math", "-Wno-psabi"],
            extra_link_args=["-pthread", "-lm"],
            optional=True,
        )
    ],
)
