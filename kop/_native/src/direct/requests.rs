//! Requests, as far as all of their batches may be sent at once.
//!
//! Owns: which topics, partitions and producers have a writer, and the checks of a request that go by its topic.
//! Must not know: how batches are sent, when this path may be used.

use std::collections::HashMap;

use pyo3::buffer::PyBuffer;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes};

use super::answer::{DirectAnswer, Name};
use super::writer::{send, DirectWriter, Limits, Waiter, REQUEST_MAY_INFLATE};
use crate::produce::{BatchHeader, Topic, CODEC_MASK, FLEXIBLE};
use crate::python::lent;

const PRODUCE: i16 = 0;
const OLDEST: i16 = 3;
const NEWEST: i16 = 13;

/// What a batch has to keep to on one topic; as `kop.cluster.topic_configs.ProduceRules`.
#[derive(Clone, Copy)]
struct Rules {
    max_message_bytes: usize,
    of_records: Limits,
    any_codec: bool,
}

struct Target {
    rules: Rules,
    /// By partition and producer id, which is -1 for all that are not idempotent.
    writers: HashMap<(i32, i64), Py<DirectWriter>>,
}

/// The topics and partitions to which requests may go on this path.
#[pyclass(module = "kop._native")]
pub struct DirectRequests {
    handler: Option<Py<PyAny>>,
    latencies: Option<Py<PyAny>>,
    names: HashMap<Vec<u8>, Target>,
    ids: HashMap<[u8; 16], Target>,
    records: u64,
    bytes: u64,
    requests: [u64; NEWEST as usize + 1],
}

/// A batch with whose header nothing is wrong.
struct CheckedBatch {
    writer: Py<DirectWriter>,
    header: BatchHeader,
    batch: Py<PyByteArray>,
    limits: Limits,
}

struct CheckedRequest {
    version: i16,
    correlation_id: i32,
    topics: Vec<(Name, Vec<i32>)>,
    batches: Vec<CheckedBatch>,
}

#[pymethods]
impl DirectRequests {
    /// `handler` encodes refusals and counts throttled answers, `latencies` is where the duration of an answer counts.
    #[new]
    fn new(handler: Py<PyAny>, latencies: Py<PyAny>) -> Self {
        DirectRequests {
            handler: Some(handler),
            latencies: Some(latencies),
            names: HashMap::new(),
            ids: HashMap::new(),
            records: 0,
            bytes: 0,
            requests: [0; NEWEST as usize + 1],
        }
    }

    /// Lets batches of a producer to a partition go to `writer`. The topic is a name, or the 16 bytes of its id.
    #[allow(clippy::too_many_arguments)]
    fn add(
        &mut self,
        topic: &Bound<'_, PyAny>,
        partition: i32,
        producer_id: i64,
        writer: Py<DirectWriter>,
        max_message_bytes: usize,
        before_max_ms: i64,
        after_max_ms: i64,
        compact: bool,
        any_codec: bool,
    ) -> PyResult<()> {
        let of_records = Limits { before_max_ms, after_max_ms, compacted: compact };
        let rules = Rules { max_message_bytes, of_records, any_codec };
        let new = || Target { rules, writers: HashMap::new() };
        let target = if let Ok(id) = topic.downcast::<PyBytes>() {
            self.ids.entry(id.as_bytes().try_into()?).or_insert_with(new)
        } else {
            self.names.entry(topic.extract::<String>()?.into_bytes()).or_insert_with(new)
        };
        target.rules = rules;
        target.writers.insert((partition, producer_id), writer);
        Ok(())
    }

    /// Forgets the writers that take nothing any more.
    fn prune(&mut self, py: Python<'_>) {
        for target in self.names.values_mut().chain(self.ids.values_mut()) {
            target.writers.retain(|_, writer| writer.borrow(py).open);
        }
        self.names.retain(|_, target| !target.writers.is_empty());
        self.ids.retain(|_, target| !target.writers.is_empty());
    }

    /// Forgets all topics.
    fn clear(&mut self) {
        self.names.clear();
        self.ids.clear();
    }

    /// How many writers are known.
    #[getter]
    fn writers(&self) -> usize {
        self.names.values().chain(self.ids.values()).map(|target| target.writers.len()).sum()
    }

    /// What was taken since the last call: records, bytes, and requests by version.
    fn counted(&mut self) -> (u64, u64, Vec<u64>) {
        let requests = std::mem::replace(&mut self.requests, [0; NEWEST as usize + 1]);
        (std::mem::take(&mut self.records), std::mem::take(&mut self.bytes), requests.to_vec())
    }

    /// Takes a request, as a frame without its size: sends all of its batches, and returns its answer. None where it
    /// has to go the ordinary way; then nothing has happened.
    ///
    /// `started` is for the answer, `now` the loop's time, `now_ms` the wall clock's.
    fn take<'py>(
        slf: &Bound<'py, Self>,
        py: Python<'py>,
        frame: PyBuffer<u8>,
        started: f64,
        now: f64,
        now_ms: i64,
    ) -> PyResult<Option<Bound<'py, DirectAnswer>>> {
        let checked = slf.borrow().check(py, lent(py, &frame)?);
        drop(frame);
        let Some(CheckedRequest { version, correlation_id, topics, batches }) = checked else { return Ok(None) };
        let (handler, latencies) = {
            let own = slf.borrow();
            let (Some(handler), Some(latencies)) = (&own.handler, &own.latencies) else { return Ok(None) };
            (handler.clone_ref(py), latencies.clone_ref(py))
        };
        let mut prepared = Vec::with_capacity(batches.len());
        let mut most_inflated = REQUEST_MAY_INFLATE;
        let (mut records, mut bytes) = (0, 0usize);
        for CheckedBatch { writer, mut header, batch, limits } in batches {
            let (writer, batch) = (writer.into_bound(py), batch.into_bound(py));
            let framed = writer.borrow().framed(&batch, &mut header, now_ms, &limits, &mut most_inflated, bytes)?;
            let Some(framed) = framed else { return Ok(None) };
            records += header.record_count as u64;
            bytes += batch.len();
            prepared.push((writer, framed.with(header, &batch)));
        }
        {
            let mut own = slf.borrow_mut();
            own.records += records;
            own.bytes += bytes as u64;
            own.requests[version as usize] += 1;
        }
        let answer = DirectAnswer::new(handler, latencies, version, correlation_id, topics, started);
        let answer = Bound::new(py, answer)?;
        for (place, (writer, batch)) in prepared.into_iter().enumerate() {
            send(&writer, batch, Waiter::Direct(answer.clone().unbind()), place, now)?;
        }
        Ok(Some(answer))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.handler)?;
        visit.call(&self.latencies)?;
        for target in self.names.values().chain(self.ids.values()) {
            for writer in target.writers.values() {
                visit.call(writer)?;
            }
        }
        Ok(())
    }

    fn __clear__(&mut self) {
        (self.handler, self.latencies) = (None, None);
        self.clear();
    }
}

impl DirectRequests {
    /// Looks at all of a request, but not at its records. None where something about it is unusual.
    fn check(&self, py: Python<'_>, frame: &[u8]) -> Option<CheckedRequest> {
        if self.names.is_empty() && self.ids.is_empty() {
            return None;
        }
        let header = crate::produce::read_header(frame, &[FLEXIBLE as u8])?;
        let version = header.api_version;
        if header.api_key != PRODUCE || !(OLDEST..=NEWEST).contains(&version) {
            return None;
        }
        let body = &frame[header.body..];
        let request = crate::produce::read_produce(body, version, false)?;
        if request.transactional || !matches!(request.acks, -1 | 1) {
            return None;
        }
        let mut checked = CheckedRequest {
            version,
            correlation_id: header.correlation_id,
            topics: Vec::with_capacity(request.topics.len()),
            batches: Vec::new(),
        };
        for (topic, batches) in request.topics {
            let target = match topic {
                Topic::Name(name) => self.names.get(name.as_bytes()),
                Topic::Id(id) => self.ids.get(&id),
            }?;
            let mut partitions = Vec::with_capacity(batches.len());
            for batch in batches {
                let (data, header) = (&body[batch.records?], batch.header?);
                let writer = target.writers.get(&(batch.partition, header.producer_id.max(-1)))?;
                let twice = checked.batches.iter().any(|other| other.writer.is(writer));
                if twice || !target.rules.let_through(data.len(), &header) {
                    return None;
                }
                partitions.push(batch.partition);
                checked.batches.push(CheckedBatch {
                    writer: writer.clone_ref(py),
                    header,
                    batch: PyByteArray::new(py, data).unbind(),
                    limits: target.rules.of_records,
                });
            }
            let name = match topic {
                Topic::Name(name) => Name::Text(name.as_bytes().to_vec()),
                Topic::Id(id) => Name::Id(id),
            };
            checked.topics.push((name, partitions));
        }
        (!checked.batches.is_empty()).then_some(checked)
    }
}

impl Rules {
    /// Whether a batch may be stored as it is, by all but its records.
    fn let_through(&self, size: usize, header: &BatchHeader) -> bool {
        (self.any_codec || header.attributes & CODEC_MASK == 0) && size <= self.max_message_bytes
    }
}
