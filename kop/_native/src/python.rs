//! What passes between Python and Rust.
//!
//! Owns: the bytes that Python lends, and tuples that are the fields of a Python class.
//! Must not know: what is done with them.

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::produce::BatchHeader;

/// The bytes of a buffer that Python lent. No Python code may run while they are looked at: it could change them.
pub fn lent<'a>(py: Python<'a>, buffer: &'a PyBuffer<u8>) -> PyResult<&'a [u8]> {
    let cells = buffer.as_slice(py).ok_or_else(|| PyBufferError::new_err("the bytes do not lie side by side"))?;
    // SAFETY: a ReadOnlyCell<u8> is laid out as a u8. The buffer keeps the memory where it is, and nothing writes to it
    // while this thread holds the interpreter's lock and calls nothing of Python.
    #[allow(unsafe_code)]
    Ok(unsafe { std::slice::from_raw_parts(cells.as_ptr().cast(), cells.len()) })
}

/// The fields of `kop.records.batch.BatchHeader`.
pub fn header_fields<'py>(py: Python<'py>, header: &BatchHeader) -> PyResult<Bound<'py, PyTuple>> {
    PyTuple::new(
        py,
        [
            header.base_offset,
            header.batch_length.into(),
            header.leader_epoch.into(),
            header.magic.into(),
            header.crc.into(),
            header.attributes.into(),
            header.last_offset_delta.into(),
            header.base_timestamp,
            header.max_timestamp,
            header.producer_id,
            header.producer_epoch.into(),
            header.base_sequence.into(),
            header.record_count.into(),
        ],
    )
}
