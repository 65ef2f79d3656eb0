//! Pulsar messages -> Kafka records.

use std::borrow::Cow;
use std::collections::HashMap;

use crate::faults::{entry_fault, Fault, Result};
use crate::kafka::{
    headers, nullable_size, put_header, put_nullable, put_signed, signed_size, walk_headers, Header, Headers,
};
use crate::produce::{CRC_FROM, HEADER_SIZE, LOG_APPEND_TIME_BIT};
use crate::proto::{parse_entry, property, Field, Fields, Property};
use crate::text::{
    as_properties, from_base64, marker, EMPTY_PAYLOAD, EMPTY_PROPERTY, HEADERS_PROPERTY, RESERVED, TIMESTAMP_PROPERTY,
};

const MAX_PROPERTIES: usize = 100_000;

pub struct Records {
    /// The records, behind room for the header of a batch.
    bytes: Vec<u8>,
    pub count: u32,
    pub base_timestamp: i64,
    pub max_timestamp: i64,
    /// Messages without a `partition_key`.
    pub keyless: u32,
}

impl Records {
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[HEADER_SIZE..]
    }

    /// The whole batch; nothing where there is no record.
    pub fn into_batch(mut self, place: &Place) -> Vec<u8> {
        if self.count == 0 {
            return Vec::new();
        }
        place.write_head(&mut self.bytes, self.count, self.base_timestamp, self.max_timestamp);
        self.bytes
    }
}

/// Where a batch lies in its partition.
pub struct Place {
    pub base_offset: i64,
    /// How many offsets it takes.
    pub places: i64,
    /// The time of every record, if that is the broker's.
    pub log_append_time: Option<i64>,
}

impl Place {
    /// Writes the header of a batch, behind which its `count` records stand already.
    fn write_head(&self, batch: &mut [u8], count: u32, base_timestamp: i64, max_timestamp: i64) {
        let size = (batch.len() - 12) as u32;
        let mut head = Vec::with_capacity(HEADER_SIZE);
        head.extend(self.base_offset.to_be_bytes());
        head.extend(size.to_be_bytes());
        head.extend([0, 0, 0, 0, 2]); // the leader epoch, the magic
        head.extend([0; 4]); // the checksum
        let attributes = if self.log_append_time.is_some() { LOG_APPEND_TIME_BIT } else { 0 };
        head.extend(attributes.to_be_bytes());
        head.extend(((self.places - 1) as i32).to_be_bytes());
        head.extend(base_timestamp.to_be_bytes());
        head.extend(self.log_append_time.unwrap_or(max_timestamp).to_be_bytes());
        head.extend([0xff; 14]); // no producer id, epoch and sequence
        head.extend(count.to_be_bytes());
        batch[..HEADER_SIZE].copy_from_slice(&head);
        let checksum = crc32c::crc32c(&batch[CRC_FROM..]);
        batch[CRC_FROM - 4..CRC_FROM].copy_from_slice(&checksum.to_be_bytes());
    }
}

#[derive(Default)]
struct Message<'a> {
    properties: Vec<Property<'a>>,
    key: Option<&'a [u8]>,
    ordering_key: Option<&'a [u8]>,
    event_time: i64,
    payload_size: i32,
    binary_key: bool,
    null_key: bool,
    null_value: bool,
    compacted_out: bool,
}

/// Writes records; the first one's timestamp is what the others' count from, unless a delta would not fit.
struct Writer {
    bytes: Vec<u8>,
    count: u32,
    keyless: u32,
    base: Option<i64>,
    max: i64,
    /// The headers of one record.
    section: Vec<u8>,
}

enum Stop {
    Fault(Fault),
    /// A timestamp is too far from the base.
    Base,
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Self {
        Stop::Fault(fault)
    }
}

pub fn unpack(payload: &[u8], count: i64, publish_time: i64, event_time: i64) -> Result<Records> {
    let known = usize::try_from(count).ok().filter(|&count| count > 0 && count <= payload.len() / 6);
    let Some(count) = known else {
        return entry_fault(format!("{} bytes cannot hold {count} messages", payload.len()));
    };
    write(payload.len(), |writer| {
        let mut rest = payload;
        for index in 0..count {
            let (message, value) = next_message(&mut rest)
                .unwrap_or_else(|| entry_fault(format!("message {index} of {count} is not whole")))?;
            if !message.compacted_out {
                writer.put(index as i64, &message, value, publish_time, event_time)?;
            }
        }
        Ok(())
    })
}

/// An entry as it came.
pub struct Entry<'a> {
    pub index: i64,
    pub broker_timestamp: i64,
    pub metadata: &'a [u8],
    pub payload: &'a [u8],
}

/// The batch of a usual entry whose first message has the offset `base_offset`, and how many messages it has.
pub fn usual_batch(entry: &Entry<'_>, base_offset: i64, append_time: bool) -> Option<(Vec<u8>, i64)> {
    let view = parse_entry(entry.metadata).ok()?;
    let places = i64::from(view.num_messages);
    if !view.usual() || entry.index.checked_sub(places - 1) != Some(base_offset) {
        return None;
    }
    let time = if entry.broker_timestamp != 0 { entry.broker_timestamp } else { view.publish_time };
    let records = unpack(entry.payload, places, view.publish_time, view.event_time).ok()?;
    let batch = records.into_batch(&Place { base_offset, places, log_append_time: append_time.then_some(time) });
    (!batch.is_empty()).then_some((batch, places))
}

/// The record of a single message, without its value.
pub struct AroundValue {
    /// Behind room for the header of a batch.
    before: Vec<u8>,
    pub behind: Vec<u8>,
    pub has_value: bool,
    pub timestamp: i64,
    pub keyless: u32,
}

impl AroundValue {
    pub fn before(&self) -> &[u8] {
        &self.before[HEADER_SIZE..]
    }

    /// Bytes of the batch of this record alone, where `payload` is the message.
    pub fn batch_size(&self, payload: &[u8]) -> usize {
        self.before.len() + if self.has_value { payload.len() } else { 0 } + self.behind.len()
    }

    /// Writes that batch.
    pub fn write_batch(&self, batch: &mut [u8], payload: &[u8], place: &Place) {
        let (before, behind) = (self.before.len(), batch.len() - self.behind.len());
        batch[..before].copy_from_slice(&self.before);
        if self.has_value {
            batch[before..behind].copy_from_slice(payload);
        }
        batch[behind..].copy_from_slice(&self.behind);
        place.write_head(batch, 1, self.timestamp, self.timestamp);
    }
}

pub fn unpack_one(metadata: &[u8], size: usize) -> Result<AroundValue> {
    let mut message = Message::default();
    let mut publish_time = 0;
    let mut fields = Fields::new(metadata);
    while let Some(field) = fields.next()? {
        match field {
            (3, Field::Number(value)) => publish_time = value as i64,
            (4, Field::Bytes(bytes)) => message.properties.push(property(bytes)?),
            (6, Field::Bytes(bytes)) => message.key = Some(bytes),
            (12, Field::Number(value)) => message.event_time = value as i64,
            (17, Field::Number(value)) => message.binary_key = value != 0,
            (18, Field::Bytes(bytes)) => message.ordering_key = Some(bytes),
            (25, Field::Number(value)) => message.null_value = value != 0,
            (30, Field::Number(value)) => message.null_key = value != 0,
            _ => {}
        }
    }
    let mut writer = Writer::new(0, None);
    match writer.put_before_value(0, &message, size, publish_time, 0) {
        Ok(()) => Ok(AroundValue {
            before: writer.bytes,
            behind: writer.section,
            has_value: !message.null_value,
            timestamp: writer.max,
            keyless: writer.keyless,
        }),
        Err(Stop::Fault(fault)) => Err(fault),
        Err(Stop::Base) => entry_fault("a timestamp that no base fits"),
    }
}

/// Metadata and value of the message at the front; None where a size cannot be.
fn next_message<'a>(rest: &mut &'a [u8]) -> Option<Result<(Message<'a>, &'a [u8])>> {
    let (size, behind) = rest.split_first_chunk::<4>()?;
    let size = usize::try_from(i32::from_be_bytes(*size)).ok()?;
    let (metadata, behind) = behind.split_at_checked(size)?;
    let message = match single(metadata) {
        Ok(message) => message,
        Err(fault) => return Some(Err(fault)),
    };
    let (value, behind) = behind.split_at_checked(usize::try_from(message.payload_size).ok()?)?;
    *rest = behind;
    Some(Ok((message, value)))
}

fn single(metadata: &[u8]) -> Result<Message<'_>> {
    let mut message = Message { payload_size: -1, ..Message::default() };
    let mut fields = Fields::new(metadata);
    while let Some(field) = fields.next()? {
        match field {
            (1, Field::Bytes(bytes)) => message.properties.push(property(bytes)?),
            (2, Field::Bytes(bytes)) => message.key = Some(bytes),
            (3, Field::Number(value)) => message.payload_size = value as i32,
            (4, Field::Number(value)) => message.compacted_out = value != 0,
            (5, Field::Number(value)) => message.event_time = value as i64,
            (6, Field::Number(value)) => message.binary_key = value != 0,
            (7, Field::Bytes(bytes)) => message.ordering_key = Some(bytes),
            (9, Field::Number(value)) => message.null_value = value != 0,
            (10, Field::Number(value)) => message.null_key = value != 0,
            _ => {}
        }
    }
    Ok(message)
}

/// Runs `put_all`, a second time with base 0 where the first record's timestamp cannot be the base.
fn write(size: usize, put_all: impl Fn(&mut Writer) -> std::result::Result<(), Stop>) -> Result<Records> {
    let mut writer = Writer::new(size, None);
    let mut stopped = put_all(&mut writer);
    if matches!(stopped, Err(Stop::Base)) {
        writer = Writer::new(size, Some(0));
        stopped = put_all(&mut writer);
    }
    match stopped {
        Ok(()) if writer.count == 0 => {
            Ok(Records { bytes: vec![0; HEADER_SIZE], count: 0, base_timestamp: -1, max_timestamp: -1, keyless: 0 })
        }
        Ok(()) => Ok(Records {
            bytes: writer.bytes,
            count: writer.count,
            base_timestamp: writer.base.unwrap_or(-1),
            max_timestamp: writer.max,
            keyless: writer.keyless,
        }),
        Err(Stop::Fault(fault)) => Err(fault),
        Err(Stop::Base) => entry_fault("timestamps that no base fits"),
    }
}

impl Writer {
    fn new(size: usize, base: Option<i64>) -> Self {
        let mut bytes = Vec::with_capacity(HEADER_SIZE + size + size / 8 + 64);
        bytes.resize(HEADER_SIZE, 0);
        Writer { bytes, count: 0, keyless: 0, base, max: i64::MIN, section: Vec::new() }
    }

    fn put(
        &mut self,
        index: i64,
        message: &Message<'_>,
        value: &[u8],
        publish_time: i64,
        entry_event_time: i64,
    ) -> std::result::Result<(), Stop> {
        let empty = value == EMPTY_PAYLOAD && message.properties.contains(&EMPTY_PROPERTY);
        let value = if empty { &[] } else { value };
        self.put_before_value(index, message, value.len(), publish_time, entry_event_time)?;
        if !message.null_value {
            self.bytes.extend_from_slice(value);
        }
        self.bytes.extend_from_slice(&self.section);
        Ok(())
    }

    /// All of a record that stands before its value; `section` stands behind it.
    fn put_before_value(
        &mut self,
        index: i64,
        message: &Message<'_>,
        value_size: usize,
        publish_time: i64,
        entry_event_time: i64,
    ) -> std::result::Result<(), Stop> {
        if message.properties.len() > MAX_PROPERTIES {
            return Err(Fault::Entry(format!("a message of {} properties", message.properties.len())).into());
        }
        let ours = message.properties.iter().any(|(name, _)| name.starts_with(RESERVED));
        self.section.clear();
        let marked = if ours {
            restore(&mut self.section, &message.properties)
        } else {
            put_plain(&mut self.section, &message.properties);
            None
        };
        let timestamp = match (message.event_time, marked, entry_event_time) {
            (0, Some(marked), _) => marked,
            (0, None, 0) => publish_time,
            (0, None, event_time) | (event_time, _, _) => event_time,
        };
        let key = match (message.key, message.ordering_key) {
            _ if message.null_key => None,
            (Some(text), _) if message.binary_key => match from_base64(text) {
                Some(key) => Some(Cow::Owned(key)),
                None => return Err(Fault::Entry("a key that is marked as base64 is none".into()).into()),
            },
            (Some(key), _) | (None, Some(key)) => Some(Cow::Borrowed(key)),
            (None, None) => None,
        };
        let value_size = (!message.null_value).then_some(value_size);
        let base = *self.base.get_or_insert(timestamp);
        let delta = timestamp.checked_sub(base).ok_or(Stop::Base)?;
        self.max = self.max.max(timestamp);
        self.count += 1;
        self.keyless += u32::from(message.key.is_none());
        let size = 1
            + signed_size(delta)
            + signed_size(index)
            + nullable_size(key.as_deref())
            + value_size.map_or(1, |size| signed_size(size as i64) + size)
            + self.section.len();
        let out = &mut self.bytes;
        put_signed(out, size as i64);
        out.push(0); // attributes
        put_signed(out, delta);
        put_signed(out, index);
        put_nullable(out, key.as_deref());
        put_signed(out, value_size.map_or(-1, |size| size as i64));
        Ok(())
    }
}

fn put_plain(out: &mut Vec<u8>, properties: &[Property<'_>]) {
    put_signed(out, properties.len() as i64);
    for &(name, value) in properties {
        put_header(out, (name, Some(value)));
    }
}

/// Writes the headers that properties stand for where some are ours; returns the timestamp where they hold one.
fn restore(out: &mut Vec<u8>, properties: &[Property<'_>]) -> Option<i64> {
    let mut section = None;
    let mut marked = None;
    let mut plain = Vec::with_capacity(properties.len());
    for &(name, value) in properties {
        if name == HEADERS_PROPERTY && section.is_none() {
            section = from_base64(value).filter(|section| walk_headers(section, |_| ()).is_some());
            if section.is_some() {
                continue;
            }
        } else if name == TIMESTAMP_PROPERTY && marked.is_none() {
            marked = marker(value);
            if marked.is_some() {
                continue;
            }
        } else if (name, value) == EMPTY_PROPERTY {
            continue;
        }
        plain.push((name, value));
    }
    let listed = section.as_deref().and_then(|section| Some((section, headers(section)?)));
    match listed {
        None => put_plain(out, &plain),
        Some((section, Headers::Many(count))) => {
            put_signed(out, (count + plain.len()) as i64);
            walk_headers(section, |header| put_header(out, header));
            plain.iter().for_each(|&(name, value)| put_header(out, (name, Some(value))));
        }
        Some((_, Headers::Few(listed))) => {
            let expected: HashMap<&[u8], &[u8]> = as_properties(&listed).into_iter().collect();
            let present: HashMap<&[u8], &[u8]> = plain.iter().copied().collect();
            let kept = listed.into_iter().filter(|(name, _)| expected.get(name) == present.get(name));
            let added = plain.iter().filter(|(name, value)| expected.get(name) != Some(value));
            let found: Vec<Header<'_>> = kept.chain(added.map(|&(name, value)| (name, Some(value)))).collect();
            put_signed(out, found.len() as i64);
            found.into_iter().for_each(|header| put_header(out, header));
        }
    }
    marked
}
