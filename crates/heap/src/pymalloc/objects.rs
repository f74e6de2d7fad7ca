//! The objects of CPython: where their fields are, in bytes from the start of an object
//! (`PyVarObject`, `PyTypeObject`, `PyCodeObject`, `PyBytesObject`, `PyASCIIObject`).

/// The type of any object, `ob_type`.
pub const TYPE: u64 = 8;
/// The length of a variable object, `ob_size`, and of a string.
pub const LENGTH: u64 = 16;
/// The name of a type, `tp_name`.
pub const TYPE_NAME: u64 = 24;
/// The size of the objects of a type without their items, `tp_basicsize`.
pub const TYPE_BASIC_SIZE: u64 = 32;
/// The content of a `bytes` object.
pub const BYTES: u64 = 32;

/// The name of the file of a code object, `co_filename`, in 3.11 and newer.
pub const CODE_FILE: u64 = 112;
/// The qualified name of a code object, `co_qualname`, in 3.11 and newer.
pub const CODE_QUALIFIED_NAME: u64 = 128;
/// The table of lines of a code object, `co_linetable`, in 3.11 and newer.
pub const CODE_LINES: u64 = 136;
/// Size of the fields of a code object before its bytecode, in 3.11,
pub const CODE_HEAD_3_11: u64 = 184;
/// and in 3.12.
pub const CODE_HEAD_3_12: u64 = 192;

/// The first line of a code object, `co_firstlineno`, in 3.11 or in a newer version.
pub const fn code_first_line(is_3_11: bool) -> u64 {
    if is_3_11 { 72 } else { 68 }
}

/// The text of an ASCII string: from 3.12 on, and before, when a pointer that is null came first
/// (`wstr`).
pub const ASCII_TEXTS: [u64; 2] = [40, 48];
