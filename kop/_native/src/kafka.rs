//! Kafka's varints, records and headers, as kop/records/record.py reads and writes them.

use pyo3::buffer::ReadOnlyCell;

use crate::faults::{record_fault, Result};

/// A byte where it lies: in a slice, or in a buffer that Python lent.
pub trait Byte {
    fn read(&self) -> u8;
}

impl Byte for u8 {
    fn read(&self) -> u8 {
        *self
    }
}

impl Byte for ReadOnlyCell<u8> {
    fn read(&self) -> u8 {
        self.get()
    }
}

/// Bytes that are read from the front. What goes beyond the end is None.
pub struct Reader<'a, B = u8>(pub &'a [B]);

impl<'a, B: Byte> Reader<'a, B> {
    pub fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first.read())
    }

    pub fn take(&mut self, length: usize) -> Option<&'a [B]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    /// A zigzag varint of at most `bits` bits, 32 or 64.
    pub fn signed(&mut self, bits: u32) -> Option<i64> {
        let mut byte = self.byte()?;
        let mut value = u64::from(byte & 0x7f);
        let mut shift = 7;
        while byte >= 0x80 {
            if shift >= bits {
                return None;
            }
            byte = self.byte()?;
            let part = u64::from(byte & 0x7f);
            if shift == 63 && part > 1 {
                return None;
            }
            value |= part << shift;
            shift += 7;
        }
        if bits < 64 && value >> bits != 0 {
            return None;
        }
        Some((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    /// Bytes behind their length; -1 is null.
    fn nullable(&mut self) -> Option<Option<&'a [B]>> {
        match self.signed(32)? {
            -1 => Some(None),
            length => self.take(usize::try_from(length).ok()?).map(Some),
        }
    }
}

pub type Header<'a, B = u8> = (&'a [B], Option<&'a [B]>);

/// Hands each of the headers that fill `section` on, and counts them; None where it is malformed.
pub fn walk_headers<'a, B: Byte>(section: &'a [B], mut each: impl FnMut(Header<'a, B>)) -> Option<usize> {
    let mut reader = Reader(section);
    let count = usize::try_from(reader.signed(32)?).ok().filter(|&count| count <= reader.0.len())?;
    for _ in 0..count {
        let length = usize::try_from(reader.signed(32)?).ok()?;
        let name = reader.take(length)?;
        each((name, reader.nullable()?));
    }
    reader.0.is_empty().then_some(count)
}

/// The headers of a section, at most `MAX_SHOWN` of them.
pub enum Headers<'a> {
    Few(Vec<Header<'a>>),
    /// How many they are: a peer can put half a million into a megabyte.
    Many(usize),
}

pub const MAX_SHOWN: usize = 1_000;

pub fn headers(section: &[u8]) -> Option<Headers<'_>> {
    let mut found = Vec::new();
    let count = walk_headers(section, |header| {
        if found.len() <= MAX_SHOWN {
            found.push(header);
        }
    })?;
    Some(if count > MAX_SHOWN { Headers::Many(count) } else { Headers::Few(found) })
}

pub struct Record<'a, B = u8> {
    /// Its offset's distance from the base offset.
    pub delta: i64,
    pub timestamp: i64,
    pub key: Option<&'a [B]>,
    pub value: Option<&'a [B]>,
    /// The headers as they stand in the record; nobody has looked at them.
    pub section: &'a [B],
}

/// Walks over `count` records that fill a body, whose offset deltas ascend and end within the batch.
pub struct Records<'a, B = u8> {
    rest: Reader<'a, B>,
    count: i64,
    next: i64,
    last_delta: i64,
    last_offset_delta: i64,
    base_timestamp: i64,
    append_time: Option<i64>,
}

impl<'a, B: Byte> Records<'a, B> {
    /// Of records whose offset deltas are 0, 1, 2, ...: there are as many as the batch has places.
    pub fn new(body: &'a [B], count: i64, base_timestamp: i64, append_time: Option<i64>) -> Self {
        Records::with_gaps(body, count, count.saturating_sub(1), base_timestamp, append_time)
    }

    /// Of records that compaction may have left.
    pub fn with_gaps(
        body: &'a [B],
        count: i64,
        last_offset_delta: i64,
        base_timestamp: i64,
        append_time: Option<i64>,
    ) -> Self {
        Records { rest: Reader(body), count, next: 0, last_delta: -1, last_offset_delta, base_timestamp, append_time }
    }

    pub fn next(&mut self) -> Result<Option<Record<'a, B>>> {
        let index = self.next;
        if index >= self.count {
            if self.rest.0.is_empty() {
                return Ok(None);
            }
            return record_fault(format!("{} bytes behind the last record", self.rest.0.len()));
        }
        self.next += 1;
        match self.read() {
            Some(record) => Ok(Some(record)),
            None => record_fault(format!("record {index} of {} is malformed", self.count)),
        }
    }

    /// The next record as far as its headers; None where it is malformed.
    fn read(&mut self) -> Option<Record<'a, B>> {
        let length = usize::try_from(self.rest.signed(32)?).ok()?;
        let mut record = Reader(self.rest.take(length)?);
        record.byte()?; // attributes: none are defined
        let timestamp = self.base_timestamp.checked_add(record.signed(64)?)?;
        let delta = record.signed(32)?;
        if delta <= self.last_delta || delta > self.last_offset_delta {
            return None;
        }
        self.last_delta = delta;
        let key = record.nullable()?;
        let value = record.nullable()?;
        Some(Record { delta, timestamp: self.append_time.unwrap_or(timestamp), key, value, section: record.0 })
    }
}

pub fn put_header(out: &mut Vec<u8>, (name, value): Header<'_>) {
    put_nullable(out, Some(name));
    put_nullable(out, value);
}

pub fn put_signed(out: &mut Vec<u8>, number: i64) {
    put_varint(out, zigzag(number));
}

pub fn put_nullable(out: &mut Vec<u8>, data: Option<&[u8]>) {
    match data {
        Some(data) => {
            put_signed(out, data.len() as i64);
            out.extend_from_slice(data);
        }
        None => out.push(1), // -1
    }
}

pub fn signed_size(number: i64) -> usize {
    varint_size(zigzag(number))
}

pub fn nullable_size(data: Option<&[u8]>) -> usize {
    data.map_or(1, |data| signed_size(data.len() as i64) + data.len())
}

fn zigzag(number: i64) -> u64 {
    ((number << 1) ^ (number >> 63)) as u64
}

pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value > 0x7f {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

pub fn varint_size(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}
