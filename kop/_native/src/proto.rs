//! Protobuf, as much of it as Pulsar's metadata takes.

use std::borrow::Cow;

use crate::faults::{entry_fault, Fault, Result};
use crate::kafka::{put_varint, varint_size, Reader};
use crate::text::{RAW_PROPERTY, RAW_VALUE};

pub enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// The fields of a message; those of a fixed width are skipped.
pub struct Fields<'a>(Reader<'a>);

impl<'a> Fields<'a> {
    pub fn new(data: &'a [u8]) -> Self {
        Fields(Reader(data))
    }

    pub fn next(&mut self) -> Result<Option<(u64, Field<'a>)>> {
        while !self.0 .0.is_empty() {
            let tag = self.varint()?;
            let number = tag >> 3;
            if number == 0 || number >= 1 << 29 {
                return entry_fault(format!("a field with the number {number}"));
            }
            match tag & 7 {
                0 => return Ok(Some((number, Field::Number(self.varint()?)))),
                2 => {
                    let length = usize::try_from(self.varint()?).map_err(|_| cut_off())?;
                    return Ok(Some((number, Field::Bytes(self.take(length)?))));
                }
                1 => self.take(8)?,
                5 => self.take(4)?,
                wire => return entry_fault(format!("a field of wire type {wire}")),
            };
        }
        Ok(None)
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8]> {
        self.0.take(length).ok_or_else(cut_off)
    }

    fn varint(&mut self) -> Result<u64> {
        let mut value = 0;
        for shift in (0..70).step_by(7) {
            let byte = self.0.byte().ok_or_else(cut_off)?;
            value |= u64::from(byte & 0x7f) << shift; // of the tenth byte one bit counts
            if byte < 0x80 {
                return Ok(value);
            }
        }
        entry_fault("a number of more than ten bytes")
    }
}

fn cut_off() -> Fault {
    Fault::Entry("metadata that is cut off".into())
}

pub type Property<'a> = (&'a [u8], &'a [u8]);

pub fn property(data: &[u8]) -> Result<Property<'_>> {
    let (mut name, mut value) = (None, None);
    let mut fields = Fields::new(data);
    while let Some(field) = fields.next()? {
        match field {
            (1, Field::Bytes(bytes)) => name = Some(bytes),
            (2, Field::Bytes(bytes)) => value = Some(bytes),
            _ => {}
        }
    }
    name.zip(value).ok_or_else(|| Fault::Entry("a property without name or value".into()))
}

#[derive(Default)]
pub struct View<'a> {
    pub producer_name: Cow<'a, str>,
    pub sequence_id: u64,
    pub highest_sequence_id: u64,
    pub publish_time: i64,
    pub event_time: i64,
    pub num_messages: i32,
    pub batched: bool,
    pub compression: i32,
    pub uncompressed_size: u32,
    pub raw: bool,
    pub encrypted: bool,
    pub marker_type: i32,
    pub chunk_id: i32,
    pub num_chunks: i32,
    pub total_chunk_size: i32,
    pub uuid: Cow<'a, str>,
    pub txn: Option<(u64, u64)>,
}

impl View<'_> {
    /// Whether the payload alone is the messages, as they are.
    pub fn usual(&self) -> bool {
        self.batched
            && !self.raw
            && !self.encrypted
            && self.compression == 0
            && self.marker_type < 0
            && self.num_chunks <= 1
    }
}

pub fn parse_entry(metadata: &[u8]) -> Result<View<'_>> {
    let mut view = View { num_messages: 1, marker_type: -1, num_chunks: 1, ..View::default() };
    let (mut name, mut sequence_id, mut publish_time, mut txn_most, mut txn_least) = (None, None, None, None, None);
    let mut fields = Fields::new(metadata);
    while let Some((number, field)) = fields.next()? {
        match (number, field) {
            (1, Field::Bytes(bytes)) => name = Some(bytes),
            (2, Field::Number(value)) => sequence_id = Some(value),
            (3, Field::Number(value)) => publish_time = Some(value as i64),
            (4, Field::Bytes(bytes)) => view.raw |= property(bytes)? == (RAW_PROPERTY, RAW_VALUE),
            (8, Field::Number(value)) => view.compression = value as i32,
            (9, Field::Number(value)) => view.uncompressed_size = value as u32,
            (11, Field::Number(value)) => {
                view.num_messages = value as i32;
                view.batched = true;
            }
            (12, Field::Number(value)) => view.event_time = value as i64,
            (13, Field::Bytes(_)) => view.encrypted = true,
            (20, Field::Number(value)) => view.marker_type = value as i32,
            (22, Field::Number(value)) => txn_least = Some(value),
            (23, Field::Number(value)) => txn_most = Some(value),
            (24, Field::Number(value)) => view.highest_sequence_id = value,
            (26, Field::Bytes(bytes)) => view.uuid = String::from_utf8_lossy(bytes),
            (27, Field::Number(value)) => view.num_chunks = value as i32,
            (28, Field::Number(value)) => view.total_chunk_size = value as i32,
            (29, Field::Number(value)) => view.chunk_id = value as i32,
            _ => {}
        }
    }
    let (Some(name), Some(sequence_id), Some(publish_time)) = (name, sequence_id, publish_time) else {
        return entry_fault("metadata without producer_name, sequence_id or publish_time");
    };
    if view.num_messages <= 0 {
        return entry_fault(format!("an entry of {} messages", view.num_messages));
    }
    view.producer_name = String::from_utf8_lossy(name);
    view.sequence_id = sequence_id;
    view.publish_time = publish_time;
    view.raw &= view.batched;
    view.txn = txn_most.zip(txn_least);
    if view.num_chunks <= 1 {
        view.chunk_id = -1;
    }
    Ok(view)
}

pub fn put_number(out: &mut Vec<u8>, number: u64, value: u64) {
    put_varint(out, number << 3);
    put_varint(out, value);
}

pub fn put_bytes(out: &mut Vec<u8>, number: u64, data: &[u8]) {
    put_varint(out, number << 3 | 2);
    put_varint(out, data.len() as u64);
    out.extend_from_slice(data);
}

pub fn put_property(out: &mut Vec<u8>, number: u64, name: &[u8], value: &[u8]) {
    put_varint(out, number << 3 | 2);
    let sizes = varint_size(name.len() as u64) + varint_size(value.len() as u64);
    put_varint(out, (2 + sizes + name.len() + value.len()) as u64);
    put_bytes(out, 1, name);
    put_bytes(out, 2, value);
}
