# SPDX-License-Identifier: Apache-2.0
"""numpy, for those who need it when they need it: where it is not installed, the ImportError says how it comes."""
try:
    import numpy  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "numpy":
        raise
    raise ImportError("numpy is not installed, and this needs it: pip install 'dmi[numpy]'", name="numpy") from None
