//! SEND frames that wait for the end of a turn of the loop.
//!
//! Owns: `Outgoing`, the twin of the class of that name in `kop.pulsar_client.outgoing`.
//! Must not know: what a frame holds.

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

/// The frames of one connection to a Pulsar broker.
#[pyclass(module = "kop._native")]
pub struct Outgoing {
    frames: Vec<Py<PyBytes>>,
    most: usize,
    on_first: Option<Py<PyAny>>,
    on_full: Option<Py<PyAny>>,
    #[pyo3(get)]
    size: usize,
    #[pyo3(get, set)]
    pub paused: bool,
}

#[pymethods]
impl Outgoing {
    #[new]
    fn new(most: usize, on_first: Py<PyAny>, on_full: Py<PyAny>) -> Self {
        let (on_first, on_full) = (Some(on_first), Some(on_full));
        Outgoing { frames: Vec::new(), most, on_first, on_full, size: 0, paused: false }
    }

    fn push(slf: &Bound<'_, Self>, frame: Bound<'_, PyBytes>) -> PyResult<()> {
        push(slf, frame.unbind(), slf.py())
    }

    fn take<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        self.size = 0;
        PyList::new(py, std::mem::take(&mut self.frames))
    }

    fn close(&mut self) {
        self.frames.clear();
        self.size = 0;
        (self.on_first, self.on_full, self.paused) = (None, None, true);
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.on_first)?;
        visit.call(&self.on_full)
    }

    fn __clear__(&mut self) {
        self.close();
    }
}

/// Takes a frame behind all others.
pub fn push(outgoing: &Bound<'_, Outgoing>, frame: Py<PyBytes>, py: Python<'_>) -> PyResult<()> {
    let size = frame.bind(py).as_bytes().len();
    let call = {
        let mut own = outgoing.borrow_mut();
        if own.on_first.is_none() {
            return Ok(());
        }
        let first = own.frames.is_empty();
        own.frames.push(frame);
        own.size += size;
        match (own.size >= own.most, first) {
            (true, _) => own.on_full.as_ref().map(|call| call.clone_ref(py)),
            (_, true) => own.on_first.as_ref().map(|call| call.clone_ref(py)),
            _ => None,
        }
    };
    match call {
        Some(call) => call.call0(py).map(|_| ()),
        None => Ok(()),
    }
}
