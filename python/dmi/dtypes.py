# SPDX-License-Identifier: Apache-2.0
"""Element types, as include/dmi/dtype.h has them. Knows nothing of numpy and PyTorch."""
from . import headers

_BYTES = {"float": 4, "double": 8, **{f"{sign}int{bits}_t": bits // 8 for sign in ("", "u") for bits in (8, 16, 32, 64)}}
# By number: the name, and what safetensors, numpy (None: it has no such type) and PyTorch call it; bytes.
TABLE = {int(number): (*(None if name == "NULL" else name.strip('"') for name in names), _BYTES[kind])
         for _, number, *names, kind, _, _, _ in headers.rows("dtype.h", "DTYPES")}
DTYPES = ("none", *[row[0] for row in TABLE.values()])
IN_SAFETENSORS, IN_NUMPY, IN_TORCH = ({row[0]: row[i] for row in TABLE.values() if row[i]} for i in (1, 2, 3))
BYTES = {row[0]: row[4] for row in TABLE.values()}
NUMBERS = {row[3]: number for number, row in TABLE.items()}  # by PyTorch's names
