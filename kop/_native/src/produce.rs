//! Requests of Kafka's clients, as far as all of them are read, and a whole Produce with its batches.
//!
//! Owns: the same functions as `kop.wire.frame` and `kop.handlers.produce_request`, their twins. Where these refuse
//! something, or would have to say what is wrong with it, the answer here is None: then they look themselves.
//! Must not know: topics, limits of topics, errors of Kafka.

use std::ops::Range;

use crate::walk::{walk, Span};

struct Fields<'a> {
    data: &'a [u8],
    pos: usize,
}

impl<'a> Fields<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let taken = self.data.get(self.pos..self.pos.checked_add(length)?)?;
        self.pos += length;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn int16(&mut self) -> Option<i16> {
        self.array().map(i16::from_be_bytes)
    }

    fn int32(&mut self) -> Option<i32> {
        self.array().map(i32::from_be_bytes)
    }

    fn int64(&mut self) -> Option<i64> {
        self.array().map(i64::from_be_bytes)
    }

    /// An unsigned varint of at most five bytes and 32 bits.
    fn uvarint(&mut self) -> Option<usize> {
        let mut value = 0u64;
        for shift in [0, 7, 14, 21, 28] {
            let [byte] = self.array::<1>()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return (value <= u64::from(u32::MAX)).then_some(value as usize);
            }
        }
        None
    }

    fn skip_tags(&mut self) -> Option<()> {
        for _ in 0..self.uvarint()? {
            self.uvarint()?;
            let size = self.uvarint()?;
            self.take(size)?;
        }
        Some(())
    }

    fn text(&mut self, length: usize) -> Option<&'a str> {
        std::str::from_utf8(self.take(length)?).ok()
    }

    fn compact_string(&mut self) -> Option<Option<&'a str>> {
        match self.uvarint()? {
            0 => Some(None),
            length => self.text(length - 1).map(Some),
        }
    }

    fn old_string(&mut self) -> Option<Option<&'a str>> {
        match self.int16()? {
            -1 => Some(None),
            length => self.text(usize::try_from(length).ok()?).map(Some),
        }
    }

    fn count(&mut self, flexible: bool) -> Option<usize> {
        let count = if flexible { self.uvarint()?.checked_sub(1)? } else { usize::try_from(self.int32()?).ok()? };
        (count <= self.data.len() - self.pos).then_some(count)
    }

    /// Where the bytes of a nullable array of bytes lie.
    fn bytes(&mut self, flexible: bool) -> Option<Option<Range<usize>>> {
        let length = if flexible { self.uvarint()? as i64 - 1 } else { self.int32()?.into() };
        if length == -1 {
            return Some(None);
        }
        let begin = self.pos;
        self.take(usize::try_from(length).ok()?)?;
        Some(Some(begin..self.pos))
    }
}

pub struct RequestHeader<'a> {
    pub api_key: i16,
    pub api_version: i16,
    pub correlation_id: i32,
    pub client_id: Option<&'a str>,
    /// Where the body begins.
    pub body: usize,
}

/// `flexible_from` has, at the place of each API key, the first version whose header has tagged fields; 255 for none.
pub fn read_header<'a>(frame: &'a [u8], flexible_from: &[u8]) -> Option<RequestHeader<'a>> {
    let mut fields = Fields { data: frame, pos: 0 };
    let (api_key, api_version, correlation_id) = (fields.int16()?, fields.int16()?, fields.int32()?);
    let client_id = fields.old_string()?;
    let from = usize::try_from(api_key).ok().and_then(|key| flexible_from.get(key)).copied().unwrap_or(u8::MAX);
    if from < u8::MAX && api_version >= from.into() {
        fields.skip_tags()?;
    }
    Some(RequestHeader { api_key, api_version, correlation_id, client_id, body: fields.pos })
}

/// The 61 bytes before the records, as they are on the wire.
pub struct BatchHeader {
    pub base_offset: i64,
    pub batch_length: i32,
    pub leader_epoch: i32,
    pub magic: i8,
    pub crc: u32,
    pub attributes: i16,
    pub last_offset_delta: i32,
    pub base_timestamp: i64,
    pub max_timestamp: i64,
    pub producer_id: i64,
    pub producer_epoch: i16,
    pub base_sequence: i32,
    pub record_count: i32,
}

/// The first version of Produce with tagged fields.
pub const FLEXIBLE: i16 = 9;
pub const HEADER_SIZE: usize = 61;
pub const LOG_OVERHEAD: usize = 12;
pub const CRC_FROM: usize = 21;
const MIN_RECORD_SIZE: i64 = 7;
pub const CODEC_MASK: i16 = 0x07;
pub const LOG_APPEND_TIME_BIT: i16 = 0x08;
const TRANSACTIONAL_BIT: i16 = 0x10;
pub const CONTROL_BIT: i16 = 0x20;
const DELETE_HORIZON_BIT: i16 = 0x40;
/// What stays of the attributes of a batch whose largest timestamp is written; as in `kop.records.batch`.
pub const KEPT_BITS: i16 = CODEC_MASK | TRANSACTIONAL_BIT | CONTROL_BIT | DELETE_HORIZON_BIT;
const ZSTD: i16 = 4;
/// Elements that the arrays of one message may have, all together.
const MOST_ELEMENTS: usize = 1 << 18;

impl BatchHeader {
    /// What stands at the start of `data`, not looked at; None where it is too short.
    pub fn read(data: &[u8]) -> Option<BatchHeader> {
        let mut fields = Fields { data, pos: 0 };
        Some(BatchHeader {
            base_offset: fields.int64()?,
            batch_length: fields.int32()?,
            leader_epoch: fields.int32()?,
            magic: fields.array().map(i8::from_be_bytes)?,
            crc: fields.array().map(u32::from_be_bytes)?,
            attributes: fields.int16()?,
            last_offset_delta: fields.int32()?,
            base_timestamp: fields.int64()?,
            max_timestamp: fields.int64()?,
            producer_id: fields.int64()?,
            producer_epoch: fields.int16()?,
            base_sequence: fields.int32()?,
            record_count: fields.int32()?,
        })
    }
}

/// The header of a batch with which nothing is wrong, its records not looked at.
fn checked(data: &[u8], zstd_allowed: bool) -> Option<BatchHeader> {
    let header = BatchHeader::read(data)?;
    let codec = header.attributes & CODEC_MASK;
    let count = i64::from(header.record_count);
    let right = header.batch_length as i64 + LOG_OVERHEAD as i64 == data.len() as i64
        && header.magic == 2
        && (codec < ZSTD || (codec == ZSTD && zstd_allowed))
        && header.base_offset == 0
        && count > 0
        && i64::from(header.last_offset_delta) + 1 == count
        && header.attributes & (LOG_APPEND_TIME_BIT | CONTROL_BIT) == 0
        && (codec != 0 || count * MIN_RECORD_SIZE <= (data.len() - HEADER_SIZE) as i64)
        && if header.producer_id >= 0 {
            header.base_sequence >= 0 && header.producer_epoch >= 0
        } else {
            header.attributes & TRANSACTIONAL_BIT == 0
        }
        && crc32c::crc32c(&data[CRC_FROM..]) == header.crc;
    right.then_some(header)
}

fn is_transactional(data: &[u8]) -> bool {
    data.len() >= HEADER_SIZE && data[16] == 2 && i16::from(data[22]) & TRANSACTIONAL_BIT != 0
}

/// What the walk over the records found: smallest and largest timestamp, whether a record has no key.
pub type Times = (i64, i64, bool);

pub struct Batch {
    pub partition: i32,
    /// Where the records lie in the body; None for null.
    pub records: Option<Range<usize>>,
    /// None where something is wrong with the batch.
    pub header: Option<BatchHeader>,
    /// None where the records were not walked.
    pub times: Option<Times>,
}

pub enum Topic<'a> {
    Name(&'a str),
    Id([u8; 16]),
}

pub struct Produce<'a> {
    pub transactional_id: Option<&'a str>,
    pub acks: i16,
    pub timeout_ms: i32,
    /// A batch says that it belongs to a transaction.
    pub transactional: bool,
    pub topics: Vec<(Topic<'a>, Vec<Batch>)>,
}

pub fn read_produce(body: &[u8], version: i16, walks: bool) -> Option<Produce<'_>> {
    let flexible = version >= FLEXIBLE;
    let mut fields = Fields { data: body, pos: 0 };
    let transactional_id = match version {
        ..3 => None,
        3..9 => fields.old_string()?,
        _ => fields.compact_string()?,
    };
    let (acks, timeout_ms) = (fields.int16()?, fields.int32()?);
    let count = fields.count(flexible)?;
    let mut room = MOST_ELEMENTS.checked_sub(count)?;
    let mut found = Produce { transactional_id, acks, timeout_ms, transactional: false, topics: Vec::new() };
    for _ in 0..count {
        let topic = match version {
            ..9 => Topic::Name(fields.old_string()??),
            9..13 => Topic::Name(fields.compact_string()??),
            _ => Topic::Id(fields.array()?),
        };
        let partitions = fields.count(flexible)?;
        room = room.checked_sub(partitions)?;
        let mut batches = Vec::with_capacity(partitions);
        for _ in 0..partitions {
            let partition = fields.int32()?;
            let records = fields.bytes(flexible)?;
            if flexible {
                fields.skip_tags()?;
            }
            let mut batch = Batch { partition, records, header: None, times: None };
            if let Some(range) = &batch.records {
                let data = &body[range.clone()];
                found.transactional |= is_transactional(data);
                batch.header = checked(data, version >= 7);
                if let Some(header) =
                    batch.header.as_ref().filter(|header| walks && header.attributes & CODEC_MASK == 0)
                {
                    let records = &data[HEADER_SIZE..];
                    match walk(records, header.record_count.into(), header.base_timestamp, 1) {
                        Ok(walked) => {
                            let Span { earliest, latest } = walked.times;
                            batch.times = Some((earliest, latest, !walked.without_key.is_empty()))
                        }
                        Err(_) => batch.header = None,
                    }
                }
            }
            batches.push(batch);
        }
        if flexible {
            fields.skip_tags()?;
        }
        found.topics.push((topic, batches));
    }
    if flexible {
        fields.skip_tags()?;
    }
    (fields.pos == body.len()).then_some(found)
}
