"""Element types by their names in specs; no torch."""

from __future__ import annotations

from typing import Literal

from attrs import frozen

Kind = Literal["float", "complex", "int", "bool"]


@frozen
class DType:
    """An element type: its name in a spec, torch's name, and bytes an element."""

    name: str
    torch_name: str
    itemsize: int
    kind: Kind


DTYPES: dict[str, DType] = {
    d.name: d
    for d in (
        DType("f64", "float64", 8, "float"),
        DType("f32", "float32", 4, "float"),
        DType("f16", "float16", 2, "float"),
        DType("bf16", "bfloat16", 2, "float"),
        DType("f8e4m3", "float8_e4m3fn", 1, "float"),
        DType("f8e5m2", "float8_e5m2", 1, "float"),
        DType("c64", "complex64", 8, "complex"),
        DType("c128", "complex128", 16, "complex"),
        DType("i64", "int64", 8, "int"),
        DType("i32", "int32", 4, "int"),
        DType("i16", "int16", 2, "int"),
        DType("i8", "int8", 1, "int"),
        DType("u8", "uint8", 1, "int"),
        DType("bool", "bool", 1, "bool"),
    )
}
