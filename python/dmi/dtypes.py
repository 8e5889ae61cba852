# SPDX-License-Identifier: Apache-2.0
"""Element types, as include/dmi/dtype.h has them (tests/python/test_torch_names.py compares the two). Knows nothing of numpy and PyTorch."""

# By number: the name, and what safetensors, numpy (None: it has no such type) and PyTorch call it; bytes.
TABLE = {
    1: ("f32", "F32", "<f4", "float32", 4), 2: ("f16", "F16", "<f2", "float16", 2), 3: ("bf16", "BF16", None, "bfloat16", 2),
    4: ("f64", "F64", "<f8", "float64", 8), 5: ("i8", "I8", "|i1", "int8", 1), 6: ("i16", "I16", "<i2", "int16", 2),
    7: ("i32", "I32", "<i4", "int32", 4), 8: ("i64", "I64", "<i8", "int64", 8), 9: ("u8", "U8", "|u1", "uint8", 1),
    10: ("u16", "U16", "<u2", "uint16", 2), 11: ("u32", "U32", "<u4", "uint32", 4), 12: ("u64", "U64", "<u8", "uint64", 8),
    13: ("bool", "BOOL", "|b1", "bool", 1), 14: ("f8e4m3", "F8_E4M3", None, "float8_e4m3fn", 1), 15: ("f8e5m2", "F8_E5M2", None, "float8_e5m2", 1),
}
DTYPES = ("none", *[row[0] for row in TABLE.values()])
IN_SAFETENSORS, IN_NUMPY, IN_TORCH = ({row[0]: row[i] for row in TABLE.values() if row[i]} for i in (1, 2, 3))
BYTES = {row[0]: row[4] for row in TABLE.values()}
NUMBERS = {row[3]: number for number, row in TABLE.items()}  # by PyTorch's names
