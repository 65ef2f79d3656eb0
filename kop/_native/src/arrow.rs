//! Kafka records <-> the buffers of Arrow arrays, as kop/records/_pure_arrow.py and arrow_layout.py have them.

use blake2b_simd::many::{hash_many, HashManyJob};
use blake2b_simd::Params;

use crate::faults::{record_fault, Fault, Result};
use crate::kafka::{nullable_size, put_header, put_nullable, put_signed, signed_size, walk_headers, Records};
use crate::produce::{BatchHeader, CODEC_MASK, CONTROL_BIT, CRC_FROM, HEADER_SIZE, LOG_APPEND_TIME_BIT, LOG_OVERHEAD};

/// No byte of a record's headers takes more bytes than these in a chunk.
const SECTION_WEIGHT: usize = 4;
/// Bytes of most records without headers, besides key and value.
const FRAMING: usize = 12;
/// A batch of more records is worth a call of its own.
const SMALL: i32 = 16;

// Kafka -> Arrow

/// Which rows are not null.
#[derive(Default)]
pub struct Validity {
    pub nulls: usize,
    rows: usize,
    bits: Vec<u8>,
}

impl Validity {
    fn push(&mut self, valid: bool) {
        if self.rows == 8 * self.bits.len() {
            self.bits.push(0);
        }
        if valid {
            self.bits[self.rows / 8] |= 1 << (self.rows % 8);
        } else {
            self.nulls += 1;
        }
        self.rows += 1;
    }

    /// None where no row is null.
    pub fn bits(&self) -> Option<&[u8]> {
        (self.nulls > 0).then_some(&self.bits)
    }
}

/// Where each row ends in something else; int32 in bytes.
pub struct Offsets(pub Vec<u8>);

impl Default for Offsets {
    fn default() -> Self {
        Offsets(0i32.to_ne_bytes().to_vec())
    }
}

impl Offsets {
    fn push(&mut self, end: usize) -> Result<()> {
        match i32::try_from(end) {
            Ok(end) => self.0.extend_from_slice(&end.to_ne_bytes()),
            Err(_) => return record_fault(format!("{end} bytes in a column")),
        }
        Ok(())
    }
}

#[derive(Default)]
pub struct Column {
    pub validity: Validity,
    pub offsets: Offsets,
    pub data: Vec<u8>,
}

impl Column {
    pub fn push(&mut self, item: Option<&[u8]>) -> Result<()> {
        self.validity.push(item.is_some());
        self.data.extend_from_slice(item.unwrap_or_default());
        self.offsets.push(self.data.len())
    }
}

/// A column whose items are wanted one by one.
pub struct ItemsIn<'a> {
    pub validity: Option<&'a [u8]>,
    pub offsets: &'a [u8],
    pub data: &'a [u8],
}

impl<'a> ItemsIn<'a> {
    pub fn rows(&self) -> usize {
        (self.offsets.len() / 4).saturating_sub(1)
    }

    pub fn item(&self, row: usize) -> Result<Option<&'a [u8]>> {
        if let Some(bits) = self.validity {
            match bits.get(row / 8) {
                None => return record_fault("a buffer of validity that is too short"),
                Some(byte) if byte >> (row % 8) & 1 == 0 => return Ok(None),
                Some(_) => (),
            }
        }
        let at = |place: usize| {
            let bytes = self.offsets.get(4 * place..4 * place + 4)?;
            i32::from_ne_bytes(bytes.try_into().ok()?).try_into().ok()
        };
        match at(row).zip(at(row + 1)).and_then(|(start, end): (usize, usize)| self.data.get(start..end)) {
            None => record_fault(format!("offsets of row {row} that are not in its column")),
            item => Ok(item),
        }
    }
}

/// The offsets of items whose sizes come in runs: sizes, and how many times they repeat.
pub fn repeated_offsets(runs: &[(Vec<usize>, usize)]) -> Result<Offsets> {
    let (mut offsets, mut end) = (Offsets::default(), 0);
    for (sizes, times) in runs {
        for _ in 0..*times {
            for size in sizes {
                end += size;
                offsets.push(end)?;
            }
        }
    }
    Ok(offsets)
}

#[derive(Default)]
pub struct HeaderLists {
    pub validity: Validity,
    pub offsets: Offsets,
    pub names: Column,
    pub values: Column,
}

impl HeaderLists {
    fn push(&mut self, section: &[u8]) -> Result<()> {
        let mut pushed = Ok(());
        let found = walk_headers(section, |(name, value)| {
            if pushed.is_ok() {
                let name = String::from_utf8_lossy(name);
                pushed = self.names.push(Some(name.as_bytes())).and_then(|()| self.values.push(value));
            }
        });
        pushed?;
        match found {
            None => record_fault("a record's headers do not end where it ends"),
            Some(count) => {
                self.validity.push(count > 0);
                self.offsets.push(self.names.validity.rows)
            }
        }
    }
}

/// Some rows; numbers are in bytes.
#[derive(Default)]
pub struct Rows {
    pub count: usize,
    pub next_offset: i64,
    size: usize,
    pub key: Column,
    pub value: Column,
    pub offsets: Vec<u8>,
    pub timestamps: Vec<u8>,
    pub types: Vec<u8>,
    pub headers: Option<HeaderLists>,
}

impl Rows {
    fn new(with_headers: bool) -> Self {
        Rows { headers: with_headers.then(HeaderLists::default), ..Rows::default() }
    }
}

/// The records of a batch, and which of them are wanted.
pub struct Batch<'a> {
    pub body: &'a [u8],
    pub count: i64,
    pub base_offset: i64,
    pub last_offset_delta: i64,
    pub base_timestamp: i64,
    pub append_time: Option<i64>,
    pub from_offset: i64,
    /// The first that is not wanted.
    pub until_offset: i64,
}

impl<'a> Batch<'a> {
    /// The batch at the start of `data`, and its size, where it is small, and nothing is wrong with it or its records.
    fn small(data: &'a [u8], from_offset: i64, until_offset: i64, max_inflated: usize) -> Option<(Self, usize)> {
        let header = BatchHeader::read(data)?;
        let size = usize::try_from(header.batch_length).ok()?.checked_add(LOG_OVERHEAD)?;
        let body = data.get(HEADER_SIZE..size)?;
        let last = header.base_offset.checked_add(header.last_offset_delta.into())?;
        let right = header.magic == 2
            && header.attributes & (CODEC_MASK | CONTROL_BIT) == 0
            && (1..=SMALL).contains(&header.record_count)
            && header.base_offset >= 0
            && header.base_offset < until_offset
            && header.last_offset_delta >= 0
            && last < i64::MAX
            && body.len() <= max_inflated
            && crc32c::crc32c(&data[CRC_FROM..size]) == header.crc;
        let batch = Batch {
            body,
            count: header.record_count.into(),
            base_offset: header.base_offset,
            last_offset_delta: header.last_offset_delta.into(),
            base_timestamp: header.base_timestamp,
            append_time: (header.attributes & LOG_APPEND_TIME_BIT != 0).then_some(header.max_timestamp),
            from_offset,
            until_offset,
        };
        (right && batch.is_right()).then_some((batch, size))
    }

    fn records(&self) -> Records<'a> {
        Records::with_gaps(self.body, self.count, self.last_offset_delta, self.base_timestamp, self.append_time)
    }

    /// Whether the records can be taken, all of them.
    fn is_right(&self) -> bool {
        let mut records = self.records();
        loop {
            match records.next() {
                Err(_) => return false,
                Ok(None) => return true,
                Ok(Some(record)) => {
                    let headers = record.section == [0] || walk_headers(record.section, |_| ()).is_some();
                    if !headers || record.timestamp.checked_mul(1000).is_none() {
                        return false;
                    }
                }
            }
        }
    }
}

/// Records in, chunks out.
pub struct Builder {
    with_headers: bool,
    max_rows: usize,
    max_bytes: usize,
    rows: Rows,
}

impl Builder {
    pub fn new(with_headers: bool, max_rows: usize, max_bytes: usize) -> Self {
        Builder { with_headers, max_rows, max_bytes, rows: Rows::new(with_headers) }
    }

    pub fn add(&mut self, batch: &Batch<'_>) -> Result<Vec<Rows>> {
        let mut full = Vec::new();
        let kind = i32::from(batch.append_time.is_some()).to_ne_bytes();
        let mut records = batch.records();
        while let Some(record) = records.next()? {
            let Some(offset) = batch.base_offset.checked_add(record.delta) else {
                return record_fault(format!("a record at {} + {}", batch.base_offset, record.delta));
            };
            let wanted = batch.from_offset <= offset && offset < batch.until_offset;
            if !(wanted && self.with_headers) && record.section != [0] && walk_headers(record.section, |_| ()).is_none()
            {
                return record_fault(format!("the headers of the record at offset {offset} do not end where it ends"));
            }
            if !wanted {
                continue;
            }
            let mut size = record.key.map_or(0, <[u8]>::len) + record.value.map_or(0, <[u8]>::len);
            if self.with_headers {
                size += SECTION_WEIGHT * record.section.len();
            }
            let held = self.rows.count;
            if held > 0 && (held >= self.max_rows || self.rows.size + size > self.max_bytes) {
                full.push(std::mem::replace(&mut self.rows, Rows::new(self.with_headers)));
            }
            let rows = &mut self.rows;
            let Some(micros) = record.timestamp.checked_mul(1000) else {
                return record_fault(format!(
                    "the record at offset {offset} has timestamp {} ms, beyond microseconds",
                    record.timestamp
                ));
            };
            rows.size += size;
            rows.count += 1;
            rows.next_offset = offset.saturating_add(1);
            rows.key.push(record.key)?;
            rows.value.push(record.value)?;
            rows.offsets.extend_from_slice(&offset.to_ne_bytes());
            rows.timestamps.extend_from_slice(&micros.to_ne_bytes());
            rows.types.extend_from_slice(&kind);
            if let Some(headers) = &mut rows.headers {
                headers.push(record.section)?;
            }
        }
        Ok(full)
    }

    /// Takes small batches from `pos` on, to before the first that is something else or not right. Returns the chunks
    /// that got full, where that one begins, and the first offset that was not reached.
    pub fn add_small(
        &mut self,
        data: &[u8],
        mut pos: usize,
        mut done: i64,
        end: i64,
        max_inflated: usize,
    ) -> Result<(Vec<Rows>, usize, i64)> {
        let mut full = Vec::new();
        while done < end {
            let rest = data.get(pos..).unwrap_or_default();
            let Some((batch, size)) = Batch::small(rest, done, end, max_inflated) else { break };
            full.append(&mut self.add(&batch)?);
            pos += size;
            done = done.max(batch.base_offset + batch.last_offset_delta + 1).min(end);
        }
        Ok((full, pos, done))
    }

    pub fn finish(&mut self) -> Option<Rows> {
        (self.rows.count > 0).then(|| std::mem::replace(&mut self.rows, Rows::new(self.with_headers)))
    }
}

// Arrow -> Kafka

/// Whether rows are null; `first` is the place of row 0.
pub struct ValidityIn<'a> {
    pub first: usize,
    pub bits: Option<&'a [u8]>,
}

impl ValidityIn<'_> {
    fn is_null(&self, row: usize) -> Result<bool> {
        let place = self.first + row;
        match self.bits {
            None => Ok(false),
            Some(bits) => match bits.get(place / 8) {
                Some(byte) => Ok(byte >> (place % 8) & 1 == 0),
                None => record_fault("a buffer of validity that is too short"),
            },
        }
    }
}

pub struct ColumnIn<'a> {
    pub validity: ValidityIn<'a>,
    pub offsets: &'a [u8],
    pub data: &'a [u8],
}

impl<'a> ColumnIn<'a> {
    fn item(&self, row: usize) -> Result<Option<&'a [u8]>> {
        if self.validity.is_null(row)? {
            return Ok(None);
        }
        let (start, end) = range(self.offsets, self.validity.first + row)?;
        match self.data.get(start..end) {
            Some(item) => Ok(Some(item)),
            None => record_fault(format!("offsets from {start} to {end}")),
        }
    }
}

pub struct HeadersIn<'a> {
    pub validity: ValidityIn<'a>,
    pub offsets: &'a [u8],
    pub entries: ValidityIn<'a>,
    pub names: ColumnIn<'a>,
    pub values: ColumnIn<'a>,
}

impl<'a> HeadersIn<'a> {
    /// Where the headers of a row are.
    fn entries(&self, row: usize) -> Result<(usize, usize)> {
        if self.validity.is_null(row)? {
            return Ok((0, 0));
        }
        range(self.offsets, self.validity.first + row)
    }

    /// Shows the headers of a row.
    fn each(&self, row: usize, mut show: impl FnMut(&'a [u8], Option<&'a [u8]>)) -> Result<()> {
        let (start, end) = self.entries(row)?;
        for entry in start..end {
            if self.entries.is_null(entry)? {
                return record_fault(format!("row {row} has a header that is null"));
            }
            let Some(name) = self.names.item(entry)? else {
                return record_fault(format!("row {row} has a header without a name"));
            };
            show(name, self.values.item(entry)?);
        }
        Ok(())
    }

    /// Writes the headers of a row, with their number.
    fn put(&self, out: &mut Vec<u8>, row: usize) -> Result<()> {
        let (start, end) = self.entries(row)?;
        put_signed(out, (end - start) as i64);
        self.each(row, |name, value| put_header(out, (name, value)))
    }
}

pub struct TimestampsIn<'a> {
    pub validity: ValidityIn<'a>,
    pub data: &'a [u8],
    /// How many of their units are a millisecond.
    pub divisor: i64,
}

impl TimestampsIn<'_> {
    fn millis(&self, row: usize) -> Result<Option<i64>> {
        if self.validity.is_null(row)? {
            return Ok(None);
        }
        let place = 8 * (self.validity.first + row);
        match self.data.get(place..place + 8).and_then(|bytes| bytes.try_into().ok()) {
            Some(bytes) => Ok(Some(i64::from_ne_bytes(bytes).div_euclid(self.divisor))),
            None => record_fault("a buffer of timestamps that is too short"),
        }
    }
}

fn range(offsets: &[u8], place: usize) -> Result<(usize, usize)> {
    let at = |place: usize| -> Option<usize> {
        let bytes = offsets.get(4 * place..4 * place + 4)?;
        usize::try_from(i32::from_ne_bytes(bytes.try_into().ok()?)).ok()
    };
    match (at(place), at(place + 1)) {
        (Some(start), Some(end)) if start <= end => Ok((start, end)),
        _ => Err(Fault::Record("offsets that are too few, or do not ascend".into())),
    }
}

/// Rows to write; what is None is null in each row.
pub struct RowsIn<'a> {
    pub key: Option<ColumnIn<'a>>,
    pub value: Option<ColumnIn<'a>>,
    pub headers: Option<HeadersIn<'a>>,
    pub timestamps: Option<TimestampsIn<'a>>,
}

/// Records, how many they are, their base timestamp and the largest one.
pub type Encoded = (Vec<u8>, i64, i64, i64);

/// The records of the rows from `first` on, as many as fit into `room` bytes.
pub fn encode(rows: &RowsIn<'_>, first: usize, end: usize, now: i64, room: usize) -> Result<Encoded> {
    let lent: usize = [&rows.key, &rows.value].into_iter().flatten().map(|column| column.data.len()).sum();
    let mut out = Vec::with_capacity(room.min(lent + FRAMING * end.saturating_sub(first)));
    let mut section = Vec::new();
    let (mut taken, mut base, mut latest) = (0, -1, -1);
    for row in first..end {
        let timestamp = match &rows.timestamps {
            Some(timestamps) => timestamps.millis(row)?.unwrap_or(now),
            None => now,
        };
        if taken == 0 {
            (base, latest) = (timestamp, timestamp);
        }
        let Some(delta) = timestamp.checked_sub(base) else { break };
        let key = rows.key.as_ref().map_or(Ok(None), |column| column.item(row))?;
        let value = rows.value.as_ref().map_or(Ok(None), |column| column.item(row))?;
        section.clear();
        match &rows.headers {
            Some(headers) => headers.put(&mut section, row)?,
            None => section.push(0),
        }
        let size =
            1 + signed_size(delta) + signed_size(taken) + nullable_size(key) + nullable_size(value) + section.len();
        if out.len() + signed_size(size as i64) + size > room {
            break;
        }
        put_signed(&mut out, size as i64);
        out.push(0); // attributes
        put_signed(&mut out, delta);
        put_signed(&mut out, taken);
        put_nullable(&mut out, key);
        put_nullable(&mut out, value);
        out.extend_from_slice(&section);
        latest = latest.max(timestamp);
        taken += 1;
    }
    Ok(if taken > 0 { (out, taken, base, latest) } else { (Vec::new(), 0, -1, -1) })
}

/// The partition, of `count`, that Kafka's default partitioner chooses for each key; int32 in bytes.
pub fn partitions(key: &ColumnIn<'_>, rows: usize, count: u32) -> Result<(Validity, Vec<u8>)> {
    let mut validity = Validity::default();
    let mut found = Vec::new();
    for row in 0..rows {
        let item = key.item(row)?;
        validity.push(item.is_some());
        let partition = item.map_or(0, |item| (murmur2(item) & 0x7fff_ffff) % count);
        found.extend_from_slice(&partition.to_ne_bytes());
    }
    Ok((validity, found))
}

/// A number a row, of 4 or 8 bytes.
pub struct NumbersIn<'a> {
    pub validity: ValidityIn<'a>,
    pub data: &'a [u8],
}

impl NumbersIn<'_> {
    /// The number of a row as text, None for null.
    fn put(&self, out: &mut String, row: usize, size: usize) -> Result<()> {
        if self.validity.is_null(row)? {
            out.push_str("None");
            return Ok(());
        }
        let place = size * (self.validity.first + row);
        let bytes = self.data.get(place..place + size);
        let number = match size {
            4 => bytes.and_then(|bytes| bytes.try_into().ok()).map(|bytes| i32::from_ne_bytes(bytes).into()),
            _ => bytes.and_then(|bytes| bytes.try_into().ok()).map(i64::from_ne_bytes),
        };
        match number {
            Some(number) => out.push_str(&number.to_string()),
            None => return record_fault("a buffer of numbers that is too short"),
        }
        Ok(())
    }
}

fn put_number(out: &mut String, numbers: Option<&NumbersIn<'_>>, row: usize, size: usize) -> Result<()> {
    match numbers {
        Some(numbers) => numbers.put(out, row, size),
        None => {
            out.push_str("None");
            Ok(())
        }
    }
}

/// Rows to digest: a topic, a partition (4 bytes) and a time (8 bytes) beside what is written.
pub struct DigestIn<'a> {
    pub rows: RowsIn<'a>,
    pub topic: Option<ColumnIn<'a>>,
    pub partition: Option<NumbersIn<'a>>,
    pub time: Option<NumbersIn<'a>>,
}

/// Bytes of rows that are gathered before they are hashed side by side.
const GATHERED: usize = 64 << 10;

/// The sum of a hash of each row, modulo 2**128.
pub fn digest(given: &DigestIn<'_>, count: usize) -> Result<u128> {
    let mut total = 0u128;
    let mut text = String::new();
    let mut fields: Vec<Option<&[u8]>> = Vec::new();
    let (mut rows, mut ends) = (Vec::new(), Vec::new());
    for row in 0..count {
        fields.clear();
        for column in [&given.rows.key, &given.rows.value] {
            fields.push(column.as_ref().map_or(Ok(None), |column| column.item(row))?);
        }
        if let Some(headers) = &given.rows.headers {
            headers.each(row, |name, value| fields.extend([Some(name), value]))?;
        }
        text.clear();
        match given.topic.as_ref().map_or(Ok(None), |column| column.item(row))? {
            Some(topic) => text.push_str(&String::from_utf8_lossy(topic)),
            None => text.push_str("None"),
        }
        text.push(',');
        put_number(&mut text, given.partition.as_ref(), row, 4)?;
        text.push(',');
        put_number(&mut text, given.time.as_ref(), row, 8)?;
        for field in &fields {
            match field {
                Some(field) => {
                    text.push(',');
                    text.push_str(&field.len().to_string());
                }
                None => text.push_str(",-1"),
            }
        }
        text.push(':');
        rows.extend_from_slice(text.as_bytes());
        for field in fields.iter().flatten() {
            rows.extend_from_slice(field);
        }
        ends.push(rows.len());
        if rows.len() >= GATHERED {
            total = total.wrapping_add(sum_of_hashes(&rows, &ends));
            rows.clear();
            ends.clear();
        }
    }
    Ok(total.wrapping_add(sum_of_hashes(&rows, &ends)))
}

/// The sum of the BLAKE2b of 16 bytes of each row; `ends` says where each ends, and the next one begins.
fn sum_of_hashes(rows: &[u8], ends: &[usize]) -> u128 {
    let mut params = Params::new();
    params.hash_length(16);
    let starts = std::iter::once(0).chain(ends.iter().copied());
    let row_of = |(start, &end)| HashManyJob::new(&params, &rows[start..end]);
    let mut hashes: Vec<_> = starts.zip(ends).map(row_of).collect();
    hash_many(&mut hashes);
    hashes.iter().fold(0, |total, hashed| {
        let bytes = hashed.to_hash().as_bytes().try_into().unwrap_or_default();
        total.wrapping_add(u128::from_be_bytes(bytes))
    })
}

/// As Kafka's `Utils.murmur2`, without a sign.
fn murmur2(data: &[u8]) -> u32 {
    const FACTOR: u32 = 0x5bd1_e995;
    let mut found = 0x9747_b28c ^ data.len() as u32;
    let mut words = data.chunks_exact(4);
    for word in &mut words {
        let word = word.iter().rev().fold(0, |word, &byte| word << 8 | u32::from(byte)).wrapping_mul(FACTOR);
        found = found.wrapping_mul(FACTOR) ^ (word ^ word >> 24).wrapping_mul(FACTOR);
    }
    if !words.remainder().is_empty() {
        found ^= words.remainder().iter().rev().fold(0, |word, &byte| word << 8 | u32::from(byte));
        found = found.wrapping_mul(FACTOR);
    }
    found = (found ^ found >> 13).wrapping_mul(FACTOR);
    found ^ found >> 15
}
