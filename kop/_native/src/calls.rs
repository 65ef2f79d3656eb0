//! The calls of a function that takes no context: the twin of `kop.functions._pure_calls`.
//!
//! Owns: this loop. Must not know: where messages come from, what becomes of results and errors.

use std::cell::Cell;

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyIterator, PyList, PyString};

/// The index of the offset in the numbers that tell where an instance is, as in `kop.functions.watch`.
const OFFSET: usize = 2;

/// Where the offset of the message is noted that the function is called with.
enum Place<'a, 'py> {
    Memory(&'a Cell<i64>),
    Sequence(&'a Bound<'py, PyAny>),
}

/// What makes the bytes of results.
pub struct Encoder<'a, 'py> {
    pub encode: &'a Bound<'py, PyAny>,
    /// True if `encode` makes UTF-8 of text, and refuses all else.
    pub is_text: bool,
}

impl<'py> Encoder<'_, 'py> {
    fn encoded(&self, result: Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        if self.is_text {
            if let Some(data) = result.downcast::<PyString>().ok().and_then(|text| text.encode_utf8().ok()) {
                return Ok(data.into_any());
            }
        }
        self.encode.call1((result,))
    }
}

/// Take a result for each offset, and note it in `values`, or the offset in `silent` if there is none. After an error
/// both iterators go on behind its message.
pub fn call_each<'py>(
    mut offsets: Bound<'py, PyIterator>,
    results: &Bound<'py, PyIterator>,
    encoder: Option<&Encoder<'_, 'py>>,
    calling: &Bound<'py, PyAny>,
    values: &Bound<'py, PyList>,
    silent: &Bound<'py, PyList>,
) -> PyResult<()> {
    let py = offsets.py();
    let next = results.getattr("__next__")?; // unlike PyIter_Next it leaves a StopIteration of the call as it is
    let sizes = py.import("kop.functions.output_sizes")?;
    let most: usize = sizes.getattr("RECORD_BYTES")?.extract()?;
    let numbers = PyBuffer::<i64>::get(calling).ok();
    let cell = numbers.as_ref().and_then(|numbers| numbers.as_mut_slice(py)).and_then(|cells| cells.get(OFFSET));
    let place = cell.map_or(Place::Sequence(calling), Place::Memory);
    while let Some(offset) = offsets.next() {
        let offset = offset?;
        match &place {
            Place::Memory(cell) => cell.set(offset.extract()?),
            Place::Sequence(numbers) => numbers.set_item(OFFSET, &offset)?,
        }
        let result = next.call0()?;
        let Some(encoder) = encoder.filter(|_| !result.is_none()) else {
            silent.append(offset)?;
            continue;
        };
        let data = encoder.encoded(result)?;
        let size = data.downcast::<PyBytes>().map_or_else(|_| data.len(), |data| Ok(data.as_bytes().len()))?;
        if size > most {
            return Err(PyErr::from_value(sizes.getattr("too_large")?.call1(("the result", size))?));
        }
        values.append(data)?;
    }
    Ok(())
}
