//! The compiled twin of the modules that are the specification: `kop.records._pure` (Kafka records <-> Pulsar
//! messages; compared byte for byte by tests/records/test_transcode_twins.py) and `kop.pulsar_client._pure` (Pulsar's
//! frames; tests/pulsar_client/test_frame_twins.py); `kop.wire.frame` and `kop.handlers.produce_request` (requests;
//! tests/handlers/test_produce_twins.py); `kop.records._pure_arrow` (records <-> Arrow's buffers;
//! tests/records/test_arrow_twins.py); `kop.functions._pure_calls` (calls of functions;
//! tests/functions/test_call_twins.py). `direct/` is the twin of no single module: it carries a Produce through the steps
//! of several, hands whatever is unusual over to them, and is compared with them by
//! tests/storage/test_direct_batches.py and tests/handlers/test_produce_twins.py.
//!
//! Owns: the same functions, with the same results and the same errors.
//! Must not know: compression, sockets, as its twins.

mod arrow;
mod calls;
mod direct;
mod faults;
mod kafka;
mod produce;
mod proto;
mod python;
mod receive;
mod send;
mod text;
mod to_kafka;
mod to_pulsar;
mod walk;

use pyo3::prelude::*;

#[pymodule]
mod _native {
    use pyo3::buffer::PyBuffer;
    use pyo3::exceptions::PyBufferError;
    use pyo3::prelude::*;
    use pyo3::types::{PyByteArray, PyBytes, PyIterator, PyList, PySequence, PySlice, PyTuple};

    use crate::produce::Topic;
    use crate::python::{header_fields, lent};
    use crate::receive::Received;
    use crate::send::About;

    /// As in `kop.compiled`: a build from other sources is not taken.
    #[pymodule_export]
    const FORMAT: u32 = 22;

    #[pymodule_export]
    use crate::direct::{DirectAnswer, DirectBudget, DirectRequests, DirectWriter, Outgoing};

    #[pyfunction]
    fn read_frames<'py>(
        py: Python<'py>,
        data: &Bound<'py, PyAny>,
        limit: usize,
    ) -> PyResult<(Bound<'py, PyList>, usize, i64, &'static str)> {
        let buffer = PyBuffer::get(data)?;
        let read = crate::receive::read_frames(lent(py, &buffer)?, limit);
        let view = |range: std::ops::Range<usize>| {
            data.get_item(PySlice::new(py, range.start as isize, range.end as isize, 1))
        };
        let found = PyList::empty(py);
        for received in read.received {
            match received {
                Received::Receipts(receipts) => {
                    let tuples = receipts.iter().map(|one| {
                        (one.producer_id, one.sequence_id, one.highest_sequence_id, one.place.ledger, one.place.entry)
                    });
                    found.append(PyList::new(py, tuples.collect::<Vec<_>>())?)?;
                }
                Received::Message(one) => found.append((
                    one.consumer_id,
                    one.place.ledger,
                    one.place.entry,
                    one.index,
                    one.broker_timestamp,
                    one.num_messages,
                    view(one.metadata)?,
                    view(one.payload)?,
                    one.damaged,
                ))?,
                Received::Command(body) => found.append(PyBytes::new(py, &body))?,
            }
        }
        Ok((found, read.used, read.next_size, read.fault))
    }

    #[pyfunction]
    fn read_header<'py>(
        py: Python<'py>,
        frame: PyBuffer<u8>,
        flexible_from: &[u8],
    ) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let Some(header) = crate::produce::read_header(lent(py, &frame)?, flexible_from) else {
            return Ok(None);
        };
        (header.api_key, header.api_version, header.correlation_id, header.client_id, header.body)
            .into_pyobject(py)
            .map(Some)
    }

    #[pyfunction]
    fn read_produce<'py>(
        py: Python<'py>,
        body: &Bound<'py, PyAny>,
        version: i16,
        walks: bool,
        copies: bool,
    ) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let buffer = PyBuffer::get(body)?;
        let Some(read) = crate::produce::read_produce(lent(py, &buffer)?, version, walks) else {
            return Ok(None);
        };
        // All objects are made from here on: making one may run code of Python's, which may not see the bytes change.
        let data = lent(py, &buffer)?;
        let topics = PyList::empty(py);
        for (topic, batches) in read.topics {
            let made = PyList::empty(py);
            for batch in batches {
                let records = match batch.records {
                    None => None,
                    Some(range) if copies && batch.header.is_some() => {
                        Some(PyByteArray::new(py, &data[range]).into_any())
                    }
                    Some(range) => {
                        Some(body.get_item(PySlice::new(py, range.start as isize, range.end as isize, 1))?)
                    }
                };
                let header = match batch.header {
                    None => None,
                    Some(header) => Some(header_fields(py, &header)?),
                };
                made.append((batch.partition, records, header, batch.times))?;
            }
            match topic {
                Topic::Name(name) => topics.append((name, made))?,
                Topic::Id(id) => topics.append((PyBytes::new(py, &id), made))?,
            }
        }
        (read.transactional_id, read.acks, read.timeout_ms, read.transactional, topics).into_pyobject(py).map(Some)
    }

    #[pyfunction]
    fn walk(
        py: Python<'_>,
        body: PyBuffer<u8>,
        start: usize,
        count: i64,
        base_timestamp: i64,
        reject_null_keys: bool,
    ) -> PyResult<(i64, i64, Vec<u32>)> {
        let cells = body.as_slice(py).ok_or_else(|| PyBufferError::new_err("the bytes do not lie side by side"))?;
        let records = cells.get(start..).unwrap_or_default();
        let most = if reject_null_keys { crate::walk::MOST_REJECTED } else { 0 };
        let found = crate::walk::walk(records, count, base_timestamp, most).map_err(|fault| fault.raise(py))?;
        Ok((found.times.earliest, found.times.latest, found.without_key))
    }

    type Pieces<'py> = (Vec<(Bound<'py, PyBytes>, u32)>, Vec<u32>, i64, i64);

    #[pyfunction]
    fn pack<'py>(
        py: Python<'py>,
        body: PyBuffer<u8>,
        count: i64,
        base_timestamp: i64,
        append_time: Option<i64>,
        room: i64,
        compacted: bool,
    ) -> PyResult<Pieces<'py>> {
        let records = lent(py, &body)?;
        let packed = crate::to_pulsar::pack(records, count, base_timestamp, append_time, room, compacted)
            .map_err(|fault| fault.raise(py))?;
        let pieces = packed.pieces.iter().map(|(payload, count)| (PyBytes::new(py, payload), *count)).collect();
        Ok((pieces, packed.without_key, packed.times.earliest, packed.times.latest))
    }

    type Frames<'py> = (Vec<(Bound<'py, PyBytes>, u32, usize)>, Vec<u32>, i64, i64);

    fn framed<'py>(py: Python<'py>, about: &About<'_>, payload: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
        let head = crate::send::head(about, payload);
        PyBytes::new_with(py, head.len() + payload.len(), |frame| {
            let (front, back) = frame.split_at_mut(head.len());
            front.copy_from_slice(&head);
            back.copy_from_slice(payload);
            Ok(())
        })
    }

    #[pyfunction]
    #[allow(clippy::too_many_arguments)]
    fn send_frames<'py>(
        py: Python<'py>,
        body: PyBuffer<u8>,
        start: usize,
        count: i64,
        base_timestamp: i64,
        append_time: Option<i64>,
        room: i64,
        compacted: bool,
        producer_id: u64,
        producer_name: &[u8],
        sequence_base: u64,
        publish_time: u64,
        txn: Option<(u64, u64, bool)>,
    ) -> PyResult<Frames<'py>> {
        let records = lent(py, &body)?.get(start..).unwrap_or_default();
        let packed = crate::to_pulsar::pack(records, count, base_timestamp, append_time, room, compacted)
            .map_err(|fault| fault.raise(py))?;
        let mut frames = Vec::with_capacity(packed.pieces.len());
        let mut sequence_id = sequence_base;
        for (payload, count) in &packed.pieces {
            let about = About {
                producer_id,
                producer_name,
                sequence_id,
                publish_time,
                count: *count,
                compressed: None,
                raw: false,
                txn,
            };
            frames.push((framed(py, &about, payload)?, *count, payload.len()));
            sequence_id += u64::from(*count);
        }
        Ok((frames, packed.without_key, packed.times.earliest, packed.times.latest))
    }

    #[pyfunction]
    #[allow(clippy::too_many_arguments)]
    fn send_frame<'py>(
        py: Python<'py>,
        payload: PyBuffer<u8>,
        count: u32,
        compression: u64,
        uncompressed_size: u64,
        raw: bool,
        producer_id: u64,
        producer_name: &[u8],
        sequence_id: u64,
        publish_time: u64,
        txn: Option<(u64, u64, bool)>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let compressed = (compression > 0).then_some((compression, uncompressed_size));
        let about = About { producer_id, producer_name, sequence_id, publish_time, count, compressed, raw, txn };
        framed(py, &about, lent(py, &payload)?)
    }

    type Records<'py> = (Bound<'py, PyBytes>, u32, i64, i64, u32);

    fn records(py: Python<'_>, found: crate::faults::Result<crate::to_kafka::Records>) -> PyResult<Records<'_>> {
        let found = found.map_err(|fault| fault.raise(py))?;
        Ok((PyBytes::new(py, found.bytes()), found.count, found.base_timestamp, found.max_timestamp, found.keyless))
    }

    #[pyfunction]
    fn unpack<'py>(
        py: Python<'py>,
        payload: PyBuffer<u8>,
        count: i64,
        publish_time: i64,
        event_time: i64,
    ) -> PyResult<Records<'py>> {
        let found = crate::to_kafka::unpack(lent(py, &payload)?, count, publish_time, event_time);
        records(py, found)
    }

    #[pyfunction]
    fn unpack_one<'py>(
        py: Python<'py>,
        metadata: PyBuffer<u8>,
        size: usize,
    ) -> PyResult<(Bound<'py, PyBytes>, Bound<'py, PyBytes>, bool, i64, u32)> {
        let found = crate::to_kafka::unpack_one(lent(py, &metadata)?, size).map_err(|fault| fault.raise(py))?;
        let (before, behind) = (PyBytes::new(py, found.before()), PyBytes::new(py, &found.behind));
        Ok((before, behind, found.has_value, found.timestamp, found.keyless))
    }

    #[pyfunction]
    #[allow(clippy::too_many_arguments)]
    fn plain_batch<'py>(
        py: Python<'py>,
        metadata: PyBuffer<u8>,
        payload: PyBuffer<u8>,
        batched: bool,
        count: i64,
        publish_time: i64,
        event_time: i64,
        base_offset: i64,
        log_append_time: Option<i64>,
    ) -> PyResult<(Bound<'py, PyBytes>, u32)> {
        let payload = lent(py, &payload)?;
        let place = crate::to_kafka::Place { base_offset, places: count, log_append_time };
        if batched {
            let found = crate::to_kafka::unpack(payload, count, publish_time, event_time);
            let found = found.map_err(|fault| fault.raise(py))?;
            let keyless = found.keyless;
            return Ok((PyBytes::new(py, &found.into_batch(&place)), keyless));
        }
        let found = crate::to_kafka::unpack_one(lent(py, &metadata)?, payload.len());
        let found = found.map_err(|fault| fault.raise(py))?;
        // The value may be large: it is copied once.
        let batch = PyBytes::new_with(py, found.batch_size(payload), |batch| {
            found.write_batch(batch, payload, &place);
            Ok(())
        })?;
        Ok((batch, found.keyless))
    }

    type UsualBatches<'py> = (Vec<(i64, i64, Bound<'py, PyBytes>)>, i64, usize);
    type CameMessage = (u64, i64, i64, Option<i64>, i64, i32, PyBuffer<u8>, PyBuffer<u8>, String);

    #[pyfunction]
    fn usual_batches<'py>(
        py: Python<'py>,
        messages: &Bound<'py, PyList>,
        at: usize,
        next_offset: i64,
        append_time: bool,
    ) -> PyResult<UsualBatches<'py>> {
        let mut batches = Vec::new();
        let (mut next_offset, mut count, mut size) = (next_offset, 0, 0);
        let mut before = None;
        for place in at..messages.len() {
            // A number beyond 63 bits is nothing usual, nor is what is no message.
            let Ok(message) = messages.get_item(place)?.extract::<CameMessage>() else { break };
            let (consumer_id, ledger, entry, index, broker_timestamp, _, metadata, payload, damaged) = message;
            let Some(index) = index.filter(|&index| damaged.is_empty() && index < i64::MAX) else { break };
            if before.is_some_and(|(id, position)| id != consumer_id || (ledger, entry) <= position) {
                break;
            }
            let payload = lent(py, &payload)?;
            let entry_as_it_came =
                crate::to_kafka::Entry { index, broker_timestamp, metadata: lent(py, &metadata)?, payload };
            let Some((batch, messages)) = crate::to_kafka::usual_batch(&entry_as_it_came, next_offset, append_time)
            else {
                break;
            };
            batches.push((next_offset, index, PyBytes::new(py, &batch)));
            before = Some((consumer_id, (ledger, entry)));
            next_offset = index + 1;
            count += messages;
            size += payload.len();
        }
        Ok((batches, count, size))
    }

    #[pyfunction]
    fn parse_entry<'py>(py: Python<'py>, metadata: PyBuffer<u8>) -> PyResult<Bound<'py, PyTuple>> {
        let metadata = lent(py, &metadata)?.to_vec(); // what follows runs Python's code
        let view = crate::proto::parse_entry(&metadata).map_err(|fault| fault.raise(py))?;
        // more fields than a Rust tuple can turn into a Python one
        PyTuple::new(
            py,
            [
                view.producer_name.into_pyobject(py)?.into_any(),
                view.sequence_id.into_pyobject(py)?.into_any(),
                view.highest_sequence_id.into_pyobject(py)?.into_any(),
                view.publish_time.into_pyobject(py)?.into_any(),
                view.event_time.into_pyobject(py)?.into_any(),
                view.num_messages.into_pyobject(py)?.into_any(),
                view.batched.into_pyobject(py)?.to_owned().into_any(),
                view.compression.into_pyobject(py)?.into_any(),
                view.uncompressed_size.into_pyobject(py)?.into_any(),
                view.raw.into_pyobject(py)?.to_owned().into_any(),
                view.encrypted.into_pyobject(py)?.to_owned().into_any(),
                view.marker_type.into_pyobject(py)?.into_any(),
                view.chunk_id.into_pyobject(py)?.into_any(),
                view.num_chunks.into_pyobject(py)?.into_any(),
                view.total_chunk_size.into_pyobject(py)?.into_any(),
                view.uuid.into_pyobject(py)?.into_any(),
                view.txn.map_or(-1i128, |(most, _)| most.into()).into_pyobject(py)?.into_any(),
                view.txn.map_or(-1i128, |(_, least)| least.into()).into_pyobject(py)?.into_any(),
            ],
        )
    }

    type Column<'py> = (usize, Option<Bound<'py, PyBytes>>, Bound<'py, PyBytes>, Bound<'py, PyBytes>);

    fn column<'py>(py: Python<'py>, made: &crate::arrow::Column) -> Column<'py> {
        (
            made.validity.nulls,
            made.validity.bits().map(|bits| PyBytes::new(py, bits)),
            PyBytes::new(py, &made.offsets.0),
            PyBytes::new(py, &made.data),
        )
    }

    fn chunk<'py>(py: Python<'py>, rows: &crate::arrow::Rows) -> PyResult<Bound<'py, PyTuple>> {
        let headers = rows.headers.as_ref().map(|headers| {
            let lists = (
                headers.validity.nulls,
                headers.validity.bits().map(|bits| PyBytes::new(py, bits)),
                PyBytes::new(py, &headers.offsets.0),
            );
            (lists, column(py, &headers.names), column(py, &headers.values))
        });
        (
            rows.count,
            rows.next_offset,
            column(py, &rows.key),
            column(py, &rows.value),
            PyBytes::new(py, &rows.offsets),
            PyBytes::new(py, &rows.timestamps),
            PyBytes::new(py, &rows.types),
            headers,
        )
            .into_pyobject(py)
    }

    #[pyclass]
    struct RowBuilder(crate::arrow::Builder);

    #[pymethods]
    impl RowBuilder {
        #[new]
        fn new(with_headers: bool, max_rows: usize, max_bytes: usize) -> Self {
            RowBuilder(crate::arrow::Builder::new(with_headers, max_rows, max_bytes))
        }

        #[allow(clippy::too_many_arguments)]
        fn add<'py>(
            &mut self,
            py: Python<'py>,
            body: PyBuffer<u8>,
            count: i64,
            base_offset: i64,
            last_offset_delta: i64,
            base_timestamp: i64,
            append_time: Option<i64>,
            from_offset: i64,
            until_offset: i64,
        ) -> PyResult<Vec<Bound<'py, PyTuple>>> {
            let batch = crate::arrow::Batch {
                body: lent(py, &body)?,
                count,
                base_offset,
                last_offset_delta,
                base_timestamp,
                append_time,
                from_offset,
                until_offset,
            };
            let full = self.0.add(&batch).map_err(|fault| fault.raise(py))?;
            full.iter().map(|rows| chunk(py, rows)).collect()
        }

        fn add_small<'py>(
            &mut self,
            py: Python<'py>,
            data: PyBuffer<u8>,
            pos: usize,
            done: i64,
            end: i64,
            most: usize,
        ) -> PyResult<(Vec<Bound<'py, PyTuple>>, usize, i64)> {
            let data = lent(py, &data)?;
            let (full, pos, done) = self.0.add_small(data, pos, done, end, most).map_err(|fault| fault.raise(py))?;
            let chunks = full.iter().map(|rows| chunk(py, rows)).collect::<PyResult<_>>()?;
            Ok((chunks, pos, done))
        }

        fn finish<'py>(&mut self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
            self.0.finish().map(|rows| chunk(py, &rows)).transpose()
        }
    }

    type Bits = Option<PyBuffer<u8>>;
    type LentColumn = (usize, Bits, PyBuffer<u8>, PyBuffer<u8>);
    type LentHeaders = (usize, Bits, PyBuffer<u8>, (usize, Bits), LentColumn, LentColumn);
    type LentTimestamps = (usize, Bits, PyBuffer<u8>, i64);

    fn validity_in<'a>(py: Python<'a>, first: usize, bits: &'a Bits) -> PyResult<crate::arrow::ValidityIn<'a>> {
        let bits = bits.as_ref().map(|bits| lent(py, bits)).transpose()?;
        Ok(crate::arrow::ValidityIn { first, bits })
    }

    fn column_in<'a>(
        py: Python<'a>,
        (first, bits, offsets, data): &'a LentColumn,
    ) -> PyResult<crate::arrow::ColumnIn<'a>> {
        let (offsets, data) = (lent(py, offsets)?, lent(py, data)?);
        Ok(crate::arrow::ColumnIn { validity: validity_in(py, *first, bits)?, offsets, data })
    }

    fn headers_in<'a>(
        py: Python<'a>,
        (first, bits, offsets, (first_entry, entries), names, values): &'a LentHeaders,
    ) -> PyResult<crate::arrow::HeadersIn<'a>> {
        Ok(crate::arrow::HeadersIn {
            validity: validity_in(py, *first, bits)?,
            offsets: lent(py, offsets)?,
            entries: validity_in(py, *first_entry, entries)?,
            names: column_in(py, names)?,
            values: column_in(py, values)?,
        })
    }

    fn timestamps_in<'a>(
        py: Python<'a>,
        (first, bits, data, divisor): &'a LentTimestamps,
    ) -> PyResult<crate::arrow::TimestampsIn<'a>> {
        let (validity, data) = (validity_in(py, *first, bits)?, lent(py, data)?);
        Ok(crate::arrow::TimestampsIn { validity, data, divisor: *divisor })
    }

    #[pyfunction]
    #[allow(clippy::too_many_arguments)]
    fn encode_rows<'py>(
        py: Python<'py>,
        first_row: usize,
        rows: usize,
        key: Option<LentColumn>,
        value: Option<LentColumn>,
        headers: Option<LentHeaders>,
        timestamps: Option<LentTimestamps>,
        now: i64,
        room: usize,
    ) -> PyResult<(Bound<'py, PyBytes>, i64, i64, i64)> {
        let lent = crate::arrow::RowsIn {
            key: key.as_ref().map(|column| column_in(py, column)).transpose()?,
            value: value.as_ref().map(|column| column_in(py, column)).transpose()?,
            headers: headers.as_ref().map(|headers| headers_in(py, headers)).transpose()?,
            timestamps: timestamps.as_ref().map(|timestamps| timestamps_in(py, timestamps)).transpose()?,
        };
        let (records, taken, base_timestamp, max_timestamp) =
            crate::arrow::encode(&lent, first_row, rows, now, room).map_err(|fault| fault.raise(py))?;
        Ok((PyBytes::new(py, &records), taken, base_timestamp, max_timestamp))
    }

    #[pyfunction]
    fn items_of<'py>(
        py: Python<'py>,
        made: (usize, Option<PyBuffer<u8>>, PyBuffer<u8>, PyBuffer<u8>),
    ) -> PyResult<Bound<'py, PyList>> {
        let (nulls, validity, offsets, data) = &made;
        let bits = validity.as_ref().map(|bits| lent(py, bits)).transpose()?;
        let column = crate::arrow::ItemsIn {
            validity: bits.filter(|_| *nulls > 0),
            offsets: lent(py, offsets)?,
            data: lent(py, data)?,
        };
        let found = (0..column.rows())
            .map(|row| column.item(row).map(|item| item.map(|bytes| PyBytes::new(py, bytes))))
            .collect::<crate::faults::Result<Vec<_>>>()
            .map_err(|fault| fault.raise(py))?;
        PyList::new(py, found)
    }

    type MadeColumn<'py> = (usize, Option<Bound<'py, PyBytes>>, Bound<'py, PyBytes>, Bound<'py, PyBytes>);

    #[pyfunction]
    fn column_of<'py>(py: Python<'py>, items: &Bound<'py, PySequence>) -> PyResult<MadeColumn<'py>> {
        let mut made = crate::arrow::Column::default();
        for item in items.try_iter()? {
            let item = item?;
            let pushed = if item.is_none() {
                made.push(None)
            } else if let Ok(bytes) = item.downcast::<PyBytes>() {
                made.push(Some(bytes.as_bytes()))
            } else {
                let buffer = PyBuffer::get(&item)?;
                made.push(Some(lent(py, &buffer)?))
            };
            pushed.map_err(|fault| fault.raise(py))?;
        }
        let bits = made.validity.bits().map(|bits| PyBytes::new(py, bits));
        Ok((made.validity.nulls, bits, PyBytes::new(py, &made.offsets.0), PyBytes::new(py, &made.data)))
    }

    #[pyfunction]
    fn repeated_offsets<'py>(py: Python<'py>, runs: Vec<(Vec<usize>, usize)>) -> PyResult<Bound<'py, PyBytes>> {
        let offsets = crate::arrow::repeated_offsets(&runs).map_err(|fault| fault.raise(py))?;
        Ok(PyBytes::new(py, &offsets.0))
    }

    type LentNumbers = (usize, Bits, PyBuffer<u8>);

    fn numbers_in<'a>(py: Python<'a>, (first, bits, data): &'a LentNumbers) -> PyResult<crate::arrow::NumbersIn<'a>> {
        let (validity, data) = (validity_in(py, *first, bits)?, lent(py, data)?);
        Ok(crate::arrow::NumbersIn { validity, data })
    }

    #[pyfunction]
    #[allow(clippy::too_many_arguments)]
    fn digest_of<'py>(
        py: Python<'py>,
        rows: usize,
        topic: Option<LentColumn>,
        partition: Option<LentNumbers>,
        key: Option<LentColumn>,
        value: Option<LentColumn>,
        headers: Option<LentHeaders>,
        time: Option<LentNumbers>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let lent = crate::arrow::DigestIn {
            rows: crate::arrow::RowsIn {
                key: key.as_ref().map(|column| column_in(py, column)).transpose()?,
                value: value.as_ref().map(|column| column_in(py, column)).transpose()?,
                headers: headers.as_ref().map(|headers| headers_in(py, headers)).transpose()?,
                timestamps: None,
            },
            topic: topic.as_ref().map(|column| column_in(py, column)).transpose()?,
            partition: partition.as_ref().map(|numbers| numbers_in(py, numbers)).transpose()?,
            time: time.as_ref().map(|numbers| numbers_in(py, numbers)).transpose()?,
        };
        let found = crate::arrow::digest(&lent, rows).map_err(|fault| fault.raise(py))?;
        Ok(PyBytes::new(py, &found.to_be_bytes()))
    }

    #[pyfunction]
    fn partitions_of<'py>(
        py: Python<'py>,
        rows: usize,
        key: LentColumn,
        count: u32,
    ) -> PyResult<(usize, Option<Bound<'py, PyBytes>>, Bound<'py, PyBytes>)> {
        let (validity, found) =
            crate::arrow::partitions(&column_in(py, &key)?, rows, count).map_err(|fault| fault.raise(py))?;
        Ok((validity.nulls, validity.bits().map(|bits| PyBytes::new(py, bits)), PyBytes::new(py, &found)))
    }

    #[pyfunction]
    fn call_each<'py>(
        offsets: &Bound<'py, PyIterator>,
        results: &Bound<'py, PyIterator>,
        encode: Option<&Bound<'py, PyAny>>,
        is_text: bool,
        calling: &Bound<'py, PyAny>,
        values: &Bound<'py, PyList>,
        silent: &Bound<'py, PyList>,
    ) -> PyResult<()> {
        let encoder = encode.map(|encode| crate::calls::Encoder { encode, is_text });
        crate::calls::call_each(offsets.clone(), results, encoder.as_ref(), calling, values, silent)
    }
}
