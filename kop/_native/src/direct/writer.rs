//! The batches of one Pulsar producer, from the SEND frame to the offset.
//!
//! Owns: sequence ids, entries without a receipt, what the window of the producer needs of those that have one.
//! Must not know: requests; a waiter is told by its place alone.

use std::collections::VecDeque;

use pyo3::buffer::PyBuffer;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyList};

use super::answer::{DirectAnswer, Row};
use super::outgoing::{push, Outgoing};
use crate::produce::{BatchHeader, CODEC_MASK, CRC_FROM, HEADER_SIZE, KEPT_BITS};
use crate::python::{header_fields, lent};
use crate::send::About;
use crate::to_pulsar::Packed;
use crate::walk::Span;

const MAX_TIMESTAMP_AT: usize = 35;
const MAX_SEQUENCE: i64 = 0x7fff_ffff;
/// Bytes that all batches of one request may inflate to; others go the ordinary way, which lets others have their turn.
pub const REQUEST_MAY_INFLATE: usize = 8 << 20;

/// The bytes of all batches of an engine that are on this path, and whether it may be used.
#[pyclass(module = "kop._native")]
pub struct DirectBudget {
    #[pyo3(get)]
    used: usize,
    most: usize,
    #[pyo3(get, set)]
    closed: bool,
}

#[pymethods]
impl DirectBudget {
    #[new]
    fn new(most: usize) -> Self {
        DirectBudget { used: 0, most, closed: false }
    }
}

/// What the records of a batch have to keep to on one topic.
#[derive(Clone, Copy)]
pub struct Limits {
    pub before_max_ms: i64,
    pub after_max_ms: i64,
    /// They need keys.
    pub compacted: bool,
}

impl Limits {
    /// Whether timestamps from the earliest to the latest are near enough to `now_ms`; -1 is no time, and is taken.
    fn take(&self, times: &Span, now_ms: i64) -> bool {
        (times.earliest < 0 || now_ms.saturating_sub(times.earliest) <= self.before_max_ms)
            && (times.latest < 0 || times.latest.saturating_sub(now_ms) <= self.after_max_ms)
    }
}

/// Who is told what became of a batch.
pub enum Waiter {
    Direct(Py<DirectAnswer>),
    /// Any other `AppendWaiter`: of a request that went the ordinary way to here.
    Other(Py<PyAny>),
}

/// A batch on its way: it is in an entry that was sent, and has no receipt.
struct InFlight {
    sequence_id: u64,
    count: u32,
    frame: Py<PyBytes>,
    entry_size: usize,
    batch: Py<PyByteArray>,
    batch_size: usize,
    header: BatchHeader,
    sent: f64,
    /// Bytes of the producer's entries that Pulsar had answered when this one was sent.
    before: u64,
    waiter: Waiter,
    place: usize,
}

/// A batch that has its offset, as the window of its producer remembers it.
struct Stored {
    sequence_id: u64,
    header: BatchHeader,
    base_offset: i64,
}

/// The batches of one Pulsar producer of one partition, from the SEND frame to the offset.
#[pyclass(module = "kop._native")]
pub struct DirectWriter {
    number: u64,
    name: Vec<u8>,
    outgoing: Py<Outgoing>,
    budget: Py<DirectBudget>,
    size_limit: Option<Py<PyAny>>,
    codecs: Option<Py<PyAny>>,
    most_inflated: usize,
    /// Bytes that a payload may have.
    room: usize,
    /// Batches that the window of an idempotent producer remembers.
    window: usize,
    /// The epoch of an idempotent producer.
    epoch: Option<i16>,
    /// The sequence id of the epoch's first record.
    base: u64,
    /// The next sequence, not yet together with the epoch.
    next: i64,
    #[pyo3(get)]
    pub open: bool,
    in_flight: VecDeque<InFlight>,
    stored: VecDeque<Stored>,
    ended: Vec<(Waiter, usize, i64, i64)>,
    /// Batches that were taken.
    #[pyo3(get)]
    taken: u64,
    /// Loop time of the last one.
    #[pyo3(get)]
    used: f64,
    #[pyo3(get)]
    sent_bytes: u64,
    #[pyo3(get)]
    answered_bytes: u64,
    /// The highest sequence id that was sent; -1 for none.
    #[pyo3(get)]
    highest: i64,
    /// The highest sequence id that has a receipt; -1 for none.
    #[pyo3(get)]
    stored_up_to: i64,
}

#[pymethods]
impl DirectWriter {
    /// `size_limit` has the largest entry that Pulsar surely takes, as its attribute `surely_taken`. `codecs` is for
    /// compressed batches, as `kop.storage.pulsar.partition.decompression`, each of which may inflate to `most_inflated`.
    /// `base` is the sequence id of the first record of `epoch`, 0 for a producer that is not idempotent.
    #[new]
    #[allow(clippy::too_many_arguments)]
    fn new(
        number: u64,
        name: Vec<u8>,
        outgoing: Py<Outgoing>,
        budget: Py<DirectBudget>,
        size_limit: Py<PyAny>,
        codecs: Py<PyAny>,
        most_inflated: usize,
        room: usize,
        window: usize,
        epoch: Option<i16>,
        base: u64,
        next: i64,
    ) -> Self {
        DirectWriter {
            number,
            name,
            outgoing,
            budget,
            size_limit: Some(size_limit),
            codecs: Some(codecs),
            most_inflated,
            room,
            window,
            epoch,
            base,
            next,
            open: true,
            in_flight: VecDeque::new(),
            stored: VecDeque::new(),
            ended: Vec::new(),
            taken: 0,
            used: 0.0,
            sent_bytes: 0,
            answered_bytes: 0,
            highest: -1,
            stored_up_to: -1,
        }
    }

    #[getter]
    fn next_sequence(&self) -> i64 {
        self.next
    }

    #[getter]
    fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// When the oldest entry without a receipt was sent, in loop time; None where there is none.
    #[getter]
    fn oldest(&self) -> Option<f64> {
        self.in_flight.front().map(|entry| entry.sent)
    }

    /// The sequence id of the entry that the next receipt is for; -1 where none is waited for.
    #[getter]
    fn awaited(&self) -> i64 {
        self.in_flight.front().map_or(-1, |entry| entry.sequence_id as i64)
    }

    /// Sends a checked batch; the limits are those of its records' timestamps. Returns to how many bytes a compressed
    /// one was inflated, 0 for others; -1 where the batch has to go the ordinary way: then nothing has happened.
    #[allow(clippy::too_many_arguments)]
    fn submit(
        slf: &Bound<'_, Self>,
        batch: &Bound<'_, PyByteArray>,
        waiter: Py<PyAny>,
        place: usize,
        now: f64,
        now_ms: i64,
        compacted: bool,
        before_max_ms: i64,
        after_max_ms: i64,
    ) -> PyResult<i64> {
        let py = slf.py();
        let header = {
            let buffer = PyBuffer::<u8>::get(batch)?;
            BatchHeader::read(lent(py, &buffer)?)
        };
        let Some(mut header) = header else { return Ok(-1) };
        let limits = Limits { before_max_ms, after_max_ms, compacted };
        let most = slf.borrow().most_inflated;
        let mut most_inflated = most;
        let framed = slf.borrow().framed(batch, &mut header, now_ms, &limits, &mut most_inflated, 0)?;
        let Some(framed) = framed else { return Ok(-1) };
        let prepared = framed.with(header, batch);
        send(slf, prepared, Waiter::Other(waiter), place, now)?;
        Ok((most - most_inflated) as i64)
    }

    /// Takes receipts while they are of the next entries and lie directly behind `last_entry` of `ledger`, where the
    /// log ends at `end`. Returns how many, the batches as (entry, last offset, batch, largest timestamp), and for how
    /// long the one that waited longest did. `answer` has to be called then.
    #[allow(clippy::too_many_arguments)]
    fn receipts<'py>(
        &mut self,
        py: Python<'py>,
        receipts: &Bound<'py, PyList>,
        ledger: i64,
        last_entry: i64,
        end: i64,
        log_start_offset: i64,
        now: f64,
    ) -> PyResult<(usize, Bound<'py, PyList>, f64)> {
        let placed = PyList::empty(py);
        let (mut taken, mut end, mut last_entry, mut longest) = (0, end, last_entry, 0.0f64);
        for receipt in receipts.iter() {
            let (_, sequence_id, _, in_ledger, entry): (u64, u64, u64, i64, i64) = receipt.extract()?;
            let fits = self.in_flight.front().is_some_and(|front| front.sequence_id == sequence_id);
            if !fits && in_ledger >= 0 && sequence_id as i64 <= self.stored_up_to {
                taken += 1; // the tail brought the entry before its receipt came
                continue;
            }
            if !fits || in_ledger != ledger || entry != last_entry + 1 {
                break;
            }
            let base = end;
            if !self.in_flight.front().is_some_and(|front| stamp(py, &front.batch, base)) {
                break; // somebody else has cut the batch off
            }
            let Some(front) = self.in_flight.pop_front() else { break };
            (last_entry, end) = (entry, end + i64::from(front.count));
            placed.append((entry, end - 1, front.batch.bind(py), front.header.max_timestamp))?;
            longest = longest.max(now - front.sent);
            self.answered_bytes += front.entry_size as u64;
            self.stored_up_to = (front.sequence_id + u64::from(front.count) - 1) as i64;
            release(py, &self.budget, front.batch_size);
            self.ended.push((front.waiter, front.place, base, log_start_offset));
            if self.epoch.is_some() {
                if self.stored.len() == self.window {
                    self.stored.pop_front();
                }
                self.stored.push_back(Stored {
                    sequence_id: front.sequence_id,
                    header: front.header,
                    base_offset: base,
                });
            }
            taken += 1;
        }
        Ok((taken, placed, longest))
    }

    /// Answers the batches that `receipts` took. Those of other waiters come back, as (waiter, place, base offset, log
    /// start offset).
    fn answer<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyList>> {
        let ended = std::mem::take(&mut slf.borrow_mut().ended);
        let others = PyList::empty(slf.py());
        for (waiter, place, base, log_start_offset) in ended {
            match waiter {
                Waiter::Direct(answer) => {
                    let row = Row::Stored { base_offset: base, log_append_time: -1, log_start_offset };
                    DirectAnswer::ends(answer.bind(slf.py()), place, row, 0)?;
                }
                Waiter::Other(waiter) => others.append((waiter, place, base, log_start_offset))?,
            }
        }
        Ok(others)
    }

    /// Takes nothing any more. Returns the last batches that have their offsets, as (header, sequence id, base offset),
    /// and those on their way, as (header, batch, sequence id, frame, size of the entry, sent, before, waiter, place).
    fn hand_over<'py>(&mut self, py: Python<'py>) -> PyResult<(Bound<'py, PyList>, Bound<'py, PyList>)> {
        self.open = false;
        (self.size_limit, self.codecs) = (None, None);
        let (stored, under_way) = (PyList::empty(py), PyList::empty(py));
        for one in self.stored.drain(..) {
            stored.append((header_fields(py, &one.header)?, one.sequence_id, one.base_offset))?;
        }
        for one in self.in_flight.drain(..) {
            release(py, &self.budget, one.batch_size);
            under_way.append((
                header_fields(py, &one.header)?,
                one.batch,
                one.sequence_id,
                one.frame,
                one.entry_size,
                one.sent,
                one.before,
                match one.waiter {
                    Waiter::Direct(answer) => answer.into_any(),
                    Waiter::Other(waiter) => waiter,
                },
                one.place,
            ))?;
        }
        Ok((stored, under_way))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.outgoing)?;
        visit.call(&self.size_limit)?;
        visit.call(&self.codecs)?;
        let under_way = self.in_flight.iter().map(|entry| &entry.waiter);
        for waiter in under_way.chain(self.ended.iter().map(|(waiter, ..)| waiter)) {
            match waiter {
                Waiter::Direct(answer) => visit.call(answer)?,
                Waiter::Other(waiter) => visit.call(waiter)?,
            }
        }
        Ok(())
    }

    fn __clear__(&mut self) {
        self.open = false;
        (self.size_limit, self.codecs) = (None, None);
        self.in_flight.clear();
        self.ended.clear();
    }
}

impl DirectWriter {
    /// The sequence id of a batch that comes next; None where another one does.
    fn sequence_id(&self, header: &BatchHeader) -> Option<u64> {
        let Some(epoch) = self.epoch else { return u64::try_from(self.next).ok() };
        let comes_next = header.producer_epoch == epoch && i64::from(header.base_sequence) == self.next & MAX_SEQUENCE;
        comes_next.then_some(self.base | self.next as u64)
    }

    /// Whether a batch of this size may be sent now.
    fn takes(&self, py: Python<'_>, size: usize) -> bool {
        let budget = self.budget.borrow(py);
        self.open
            && !self.outgoing.borrow(py).paused
            && !budget.closed
            && budget.used.saturating_add(size) <= budget.most
    }

    /// The frame of a checked batch; None where it cannot be one entry that comes next. Its header is given the largest
    /// timestamp of its records.
    ///
    /// `most_inflated` is what compressed batches may still inflate to; what this one takes is subtracted. `others` are
    /// the bytes of batches that are about to be sent with it.
    pub fn framed(
        &self,
        batch: &Bound<'_, PyByteArray>,
        header: &mut BatchHeader,
        now_ms: i64,
        limits: &Limits,
        most_inflated: &mut usize,
        others: usize,
    ) -> PyResult<Option<Framed>> {
        let py = batch.py();
        if !self.takes(py, others.saturating_add(batch.len())) {
            return Ok(None);
        }
        let (Some(sequence_id), Some(most), Some(codecs)) =
            (self.sequence_id(header), self.most(py), self.codecs.as_ref())
        else {
            return Ok(None);
        };
        let codec = header.attributes & CODEC_MASK;
        let (body, begin) = if codec == 0 {
            (batch.clone().into_any(), HEADER_SIZE)
        } else {
            let most = (*most_inflated).min(self.most_inflated);
            (codecs.bind(py).call_method1(intern!(py, "inflated"), (batch, codec, most))?, 0)
        };
        if body.is_none() {
            return Ok(None);
        }
        let Packed { pieces, times, .. } = {
            let buffer = PyBuffer::<u8>::get(&body)?;
            let Some(records) = lent(py, &buffer)?.get(begin..) else { return Ok(None) };
            if codec != 0 {
                *most_inflated = most_inflated.saturating_sub(records.len());
            }
            let (count, room) = (header.record_count.into(), self.room as i64);
            match crate::to_pulsar::pack(records, count, header.base_timestamp, None, room, limits.compacted) {
                Ok(packed) if packed.without_key.is_empty() && limits.take(&packed.times, now_ms) => packed,
                _ => return Ok(None),
            }
        };
        let [(packed, count)] = pieces.as_slice() else { return Ok(None) };
        let deflated = if codec == 0 {
            None
        } else {
            let made = codecs.bind(py).call_method1(intern!(py, "deflated"), (codec, PyBytes::new(py, packed)))?;
            let (number, bytes): (u64, Bound<'_, PyBytes>) = made.extract()?;
            (bytes.as_bytes().len() < packed.len()).then_some((number, bytes))
        };
        let payload = deflated.as_ref().map_or(packed.as_slice(), |(_, bytes)| bytes.as_bytes());
        let about = About {
            producer_id: self.number,
            producer_name: &self.name,
            sequence_id,
            publish_time: now_ms as u64,
            count: *count,
            compressed: deflated.as_ref().map(|(number, _)| (*number, packed.len() as u64)),
            raw: false,
            txn: None,
        };
        let head = crate::send::head(&about, payload);
        let entry_size = crate::send::entry_size(&head) + payload.len();
        if payload.len() > self.room || entry_size > most {
            return Ok(None);
        }
        let frame = PyBytes::new_with(py, head.len() + payload.len(), |frame| {
            let (front, back) = frame.split_at_mut(head.len());
            front.copy_from_slice(&head);
            back.copy_from_slice(payload);
            Ok(())
        })?;
        if times.latest != header.max_timestamp && !stamp_create_time(batch, header, times.latest)? {
            return Ok(None);
        }
        Ok(Some(Framed { sequence_id, frame: frame.unbind(), entry_size }))
    }

    /// The largest entry that may be sent; with that size and no more Pulsar refuses none.
    fn most(&self, py: Python<'_>) -> Option<usize> {
        let taken: usize = self.size_limit.as_ref()?.getattr(py, intern!(py, "surely_taken")).ok()?.extract(py).ok()?;
        Some(self.room.min(taken))
    }
}

/// An entry as it is written, and its place among those of its producer.
pub struct Framed {
    sequence_id: u64,
    frame: Py<PyBytes>,
    entry_size: usize,
}

impl Framed {
    pub fn with(self, header: BatchHeader, batch: &Bound<'_, PyByteArray>) -> Prepared {
        Prepared { framed: self, header, batch: batch.clone().unbind(), batch_size: batch.len() }
    }
}

/// A batch with which nothing is wrong, and all that is needed to send it.
pub struct Prepared {
    framed: Framed,
    pub header: BatchHeader,
    batch: Py<PyByteArray>,
    pub batch_size: usize,
}

/// Sends a batch that comes next.
pub fn send(
    writer: &Bound<'_, DirectWriter>,
    prepared: Prepared,
    waiter: Waiter,
    place: usize,
    now: f64,
) -> PyResult<()> {
    let py = writer.py();
    let Prepared { framed: Framed { sequence_id, frame, entry_size }, header, batch, batch_size } = prepared;
    let outgoing = {
        let mut own = writer.borrow_mut();
        let count = header.record_count as u32;
        own.next += i64::from(count);
        own.taken += 1;
        own.used = now;
        own.sent_bytes += entry_size as u64;
        own.highest = (sequence_id + u64::from(count) - 1) as i64;
        own.budget.borrow_mut(py).used += batch_size;
        let (before, frame) = (own.answered_bytes, frame.clone_ref(py));
        own.in_flight.push_back(InFlight {
            sequence_id,
            count,
            frame,
            entry_size,
            batch,
            batch_size,
            header,
            sent: now,
            before,
            waiter,
            place,
        });
        own.outgoing.clone_ref(py)
    };
    push(outgoing.bind(py), frame, py)
}

fn release(py: Python<'_>, budget: &Py<DirectBudget>, size: usize) {
    let mut budget = budget.borrow_mut(py);
    budget.used = budget.used.saturating_sub(size);
}

/// Writes the largest timestamp of the records, as `kop.records.batch.stamp_create_time`. False where the batch is too
/// short.
fn stamp_create_time(batch: &Bound<'_, PyByteArray>, header: &mut BatchHeader, max_timestamp: i64) -> PyResult<bool> {
    let py = batch.py();
    let buffer = PyBuffer::<u8>::get(batch)?;
    let Some(cells) = buffer.as_mut_slice(py).filter(|cells| cells.len() >= HEADER_SIZE) else { return Ok(false) };
    let write = |at: usize, bytes: &[u8]| cells[at..].iter().zip(bytes).for_each(|(cell, &byte)| cell.set(byte));
    header.attributes &= KEPT_BITS;
    header.max_timestamp = max_timestamp;
    write(CRC_FROM, &header.attributes.to_be_bytes());
    write(MAX_TIMESTAMP_AT, &max_timestamp.to_be_bytes());
    header.crc = crc32c::crc32c(&lent(py, &buffer)?[CRC_FROM..]);
    write(CRC_FROM - 4, &header.crc.to_be_bytes());
    Ok(true)
}

/// Writes the base offset and leader epoch 0 into a batch; its checksum covers neither. False where it is too short.
fn stamp(py: Python<'_>, batch: &Py<PyByteArray>, base_offset: i64) -> bool {
    let Ok(buffer) = PyBuffer::<u8>::get(batch.bind(py)) else { return false };
    let Some(cells) = buffer.as_mut_slice(py).filter(|cells| cells.len() >= HEADER_SIZE) else { return false };
    for (cell, byte) in cells.iter().zip(base_offset.to_be_bytes()) {
        cell.set(byte);
    }
    cells[12..16].iter().for_each(|cell| cell.set(0));
    true
}
