# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin for numba-cuda's own tests: what it links stays PTX, as nvJitLink can give it instead of a cubin.

nvJitLink writes PTX from LTO IR alone. So what numba-cuda adds as one PTX text is loaded as it is, and what it links
of several parts, or of machine code, becomes a cubin, as on any machine, which the stand-in refuses.
"""
import numba.cuda.cudadrv.driver as driver
import pytest

machine_code = driver._Linker.complete


def complete(linker):
    """_Linker.complete(), as PTX where that can be."""
    if linker._has_ltoir:
        linker.linker = driver.Linker(*linker._object_codes, options=linker._get_linker_options(ptx=True))
        result = linker.linker.link("ptx")
        linker.close()
    elif [code.code_type for code in linker._object_codes] == ["ptx"]:
        result = linker.linker = linker._object_codes[0]  # not None: its logs are asked for
        linker._info_log = linker._error_log = ""
    else:
        return machine_code(linker)
    linker._complete = True
    return result


driver._Linker.complete = complete


@pytest.fixture
def initialize_from_pytest_config(request):
    """That of the conftest.py which the wheel lacks."""
    request.instance._dump_failed_filechecks = False
