//! The answer to a Produce, now or later.
//!
//! Owns: what became of each batch of the request, and the bytes of the answer.
//! Must not know: how batches are stored.

use pyo3::exceptions::PyValueError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use crate::produce::FLEXIBLE;

/// The answer of one partition.
pub enum Row {
    Waiting,
    Stored {
        base_offset: i64,
        log_append_time: i64,
        log_start_offset: i64,
    },
    /// Encoded by Python code.
    Refused {
        code: i16,
        row: Vec<u8>,
    },
}

/// What the request calls a topic.
pub enum Name {
    Text(Vec<u8>),
    Id([u8; 16]),
}

/// The answer to a Produce, now or later: what `kop.handlers.api.Answer` is to a connection, and the `AppendWaiter` of
/// batches that the ordinary path took over.
#[pyclass(module = "kop._native")]
pub struct DirectAnswer {
    /// `kop.handlers.direct_produce`, which encodes refusals and counts answers that are not the usual ones.
    handler: Py<PyAny>,
    /// Where the duration of the answer counts.
    #[pyo3(get)]
    latencies: Py<PyAny>,
    version: i16,
    correlation_id: i32,
    /// Each topic with its partitions.
    topics: Vec<(Name, Vec<i32>)>,
    rows: Vec<Row>,
    waiting: usize,
    throttle_ms: i32,
    /// The error codes of `rows`, each once.
    errors: Vec<i16>,
    /// How `topics` and `rows` become bytes is known; here they are.
    encoded: Option<Py<PyBytes>>,
    #[pyo3(get, set)]
    taker: Option<Py<PyAny>>,
    #[pyo3(get, set)]
    request_bytes: usize,
    #[pyo3(get)]
    started: f64,
}

#[pymethods]
impl DirectAnswer {
    #[classattr]
    #[pyo3(name = "alone")]
    const ALONE: bool = false;

    #[getter]
    fn ready(&self) -> bool {
        self.encoded.is_some()
    }

    #[getter]
    fn frame<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        self.encoded.as_ref().map(|bytes| PyTuple::new(py, [bytes])).transpose()
    }

    #[getter]
    fn error(&self) -> Option<Py<PyAny>> {
        None
    }

    #[getter(waiting)]
    fn waits_for(&self) -> Option<Py<PyAny>> {
        None
    }

    /// See `AppendWaiter.reserve`: nothing on this path is compressed.
    fn reserve(&self, _size: i64) {}

    /// See `AppendWaiter.appended`.
    fn appended(slf: &Bound<'_, Self>, place: usize, result: (i64, i64, i64, i32)) -> PyResult<()> {
        let (base_offset, log_append_time, log_start_offset, throttle_ms) = result;
        Self::ends(slf, place, Row::Stored { base_offset, log_append_time, log_start_offset }, throttle_ms)
    }

    /// See `AppendWaiter.append_failed`.
    fn append_failed(slf: &Bound<'_, Self>, place: usize, error: Bound<'_, PyAny>) -> PyResult<()> {
        let py = slf.py();
        let (handler, version, topic, partition) = {
            let own = slf.borrow();
            let (name, partition) = own.at(place)?;
            let topic = match name {
                Name::Text(text) => String::from_utf8_lossy(text).into_owned().into_pyobject(py)?.into_any(),
                Name::Id(id) => PyBytes::new(py, id).into_any(),
            };
            (own.handler.clone_ref(py), own.version, topic, partition)
        };
        let refusal = handler.call_method1(py, "refusal", (version, topic, partition, error))?;
        let (code, row): (i16, Vec<u8>) = refusal.extract(py)?;
        Self::ends(slf, place, Row::Refused { code, row }, 0)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.handler)?;
        visit.call(&self.latencies)?;
        visit.call(&self.taker)
    }

    fn __clear__(&mut self) {
        self.taker = None;
    }
}

impl DirectAnswer {
    /// The answer to a request for these partitions, of which none has ended.
    pub fn new(
        handler: Py<PyAny>,
        latencies: Py<PyAny>,
        version: i16,
        correlation_id: i32,
        topics: Vec<(Name, Vec<i32>)>,
        started: f64,
    ) -> Self {
        let waiting = topics.iter().map(|(_, partitions)| partitions.len()).sum();
        DirectAnswer {
            handler,
            latencies,
            version,
            correlation_id,
            topics,
            rows: (0..waiting).map(|_| Row::Waiting).collect(),
            waiting,
            throttle_ms: 0,
            errors: Vec::new(),
            encoded: None,
            taker: None,
            request_bytes: 0,
            started,
        }
    }

    fn at(&self, place: usize) -> PyResult<(&Name, i32)> {
        let mut left = place;
        for (name, partitions) in &self.topics {
            match partitions.get(left) {
                Some(partition) => return Ok((name, *partition)),
                None => left -= partitions.len(),
            }
        }
        Err(PyValueError::new_err("no such place in the request"))
    }

    /// Takes what became of one batch; the last one of the request makes the answer.
    pub fn ends(slf: &Bound<'_, Self>, place: usize, row: Row, throttle_ms: i32) -> PyResult<()> {
        let py = slf.py();
        let (taker, counted) = {
            let mut own = slf.borrow_mut();
            let refused = if let Row::Refused { code, .. } = row { Some(code) } else { None };
            match own.rows.get_mut(place) {
                Some(known @ Row::Waiting) => *known = row,
                _ => return Err(PyValueError::new_err("the batch has ended before")),
            }
            if let Some(code) = refused.filter(|code| !own.errors.contains(code)) {
                own.errors.push(code);
            }
            own.throttle_ms = own.throttle_ms.max(throttle_ms);
            own.waiting -= 1;
            if own.waiting > 0 {
                return Ok(());
            }
            own.encoded = Some(PyBytes::new(py, &own.encode()).unbind());
            let throttled = own.throttle_ms > 0;
            let counted = throttled || !own.errors.is_empty();
            let counted = counted.then(|| (own.handler.clone_ref(py), std::mem::take(&mut own.errors), throttled));
            (own.taker.take(), counted)
        };
        if let Some((handler, errors, throttled)) = counted {
            handler.call_method1(py, "ended", (errors, throttled))?;
        }
        match taker {
            Some(taker) => taker.call_method1(py, intern!(py, "answered"), (slf,)).map(|_| ()),
            None => Ok(()),
        }
    }

    /// The whole response frame: size, header, body; as `kop.wire.produce.encode_rows`.
    fn encode(&self) -> Vec<u8> {
        let flexible = self.version >= FLEXIBLE;
        let mut out = Vec::with_capacity(48 + 40 * self.rows.len());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&self.correlation_id.to_be_bytes());
        if flexible {
            out.push(0);
        }
        put_count(&mut out, self.topics.len(), flexible);
        let mut rows = self.rows.iter();
        for (name, partitions) in &self.topics {
            match name {
                Name::Id(id) => out.extend_from_slice(id),
                Name::Text(text) if flexible => {
                    put_uvarint(&mut out, text.len() as u64 + 1);
                    out.extend_from_slice(text);
                }
                Name::Text(text) => {
                    out.extend_from_slice(&(text.len() as u16).to_be_bytes());
                    out.extend_from_slice(text);
                }
            }
            put_count(&mut out, partitions.len(), flexible);
            for (partition, row) in partitions.iter().zip(rows.by_ref()) {
                self.put_row(&mut out, *partition, row);
            }
            if flexible {
                out.push(0);
            }
        }
        out.extend_from_slice(&self.throttle_ms.to_be_bytes());
        if flexible {
            out.push(0);
        }
        let size = (out.len() - 4) as u32;
        out[..4].copy_from_slice(&size.to_be_bytes());
        out
    }

    fn put_row(&self, out: &mut Vec<u8>, partition: i32, row: &Row) {
        let (base_offset, log_append_time, log_start_offset) = match row {
            Row::Refused { row, .. } => return out.extend_from_slice(row),
            Row::Stored { base_offset, log_append_time, log_start_offset } => {
                (*base_offset, *log_append_time, *log_start_offset)
            }
            Row::Waiting => (-1, -1, -1),
        };
        out.extend_from_slice(&partition.to_be_bytes());
        out.extend_from_slice(&[0; 2]);
        out.extend_from_slice(&base_offset.to_be_bytes());
        out.extend_from_slice(&log_append_time.to_be_bytes());
        if self.version >= 5 {
            out.extend_from_slice(&log_start_offset.to_be_bytes());
        }
        match self.version {
            ..8 => {}
            8 => out.extend_from_slice(&[0, 0, 0, 0, 0xff, 0xff]), // no record errors, no message
            _ => out.extend_from_slice(&[1, 0, 0]),                // the same, and no tags
        }
    }
}

fn put_count(out: &mut Vec<u8>, count: usize, flexible: bool) {
    if flexible {
        put_uvarint(out, count as u64 + 1);
    } else {
        out.extend_from_slice(&(count as u32).to_be_bytes());
    }
}

fn put_uvarint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}
