//! What is read from a broker's socket, taken apart: the compiled twin of `kop.pulsar_client._pure`, which is the
//! specification.
//!
//! Protobuf is read as Google's own library reads it, whose code the plain twin calls: an unknown field is passed over
//! if it is well formed, groups included, and of a field that comes twice the last one counts.

use std::collections::HashMap;
use std::ops::Range;

const CHECKSUM_MAGIC: u16 = 0x0e01;
const BROKER_MAGIC: u16 = 0x0e02;
const SEND_RECEIPT: i32 = 7;
const MESSAGE: i32 = 9;
const DEEPEST_GROUP: u32 = 100;

pub enum Received {
    /// Of one producer.
    Receipts(Vec<Receipt>),
    Message(Message),
    /// Any other command.
    Command(Vec<u8>),
}

#[derive(Default)]
pub struct Receipt {
    pub producer_id: u64,
    pub sequence_id: u64,
    pub highest_sequence_id: u64,
    pub place: Place,
}

/// A ledger and an entry of it.
pub struct Place {
    pub ledger: i64,
    pub entry: i64,
}

impl Default for Place {
    fn default() -> Self {
        Place { ledger: -1, entry: -1 }
    }
}

#[derive(Default)]
pub struct Message {
    pub consumer_id: u64,
    pub place: Place,
    pub index: Option<u64>,
    pub broker_timestamp: u64,
    pub num_messages: i32,
    pub metadata: Range<usize>,
    pub payload: Range<usize>,
    /// Why the entry cannot be read; empty where it can.
    pub damaged: &'static str,
}

pub struct Read {
    pub received: Vec<Received>,
    /// Bytes of the frames in `received`.
    pub used: usize,
    /// Of the next frame, which is not whole or too large; -1 where it is not known.
    pub next_size: i64,
    /// What is wrong with the frame at which reading stopped.
    pub fault: &'static str,
}

pub fn read_frames(data: &[u8], limit: usize) -> Read {
    let mut read = Read { received: Vec::new(), used: 0, next_size: -1, fault: "" };
    let mut receipts: HashMap<u64, usize> = HashMap::new();
    while let Some(size) = u32_at(data, read.used) {
        let start = read.used + 4;
        if size > limit || data.len() - start < size {
            read.next_size = size as i64;
            break;
        }
        let end = start + size;
        let Some(length) = u32_at(&data[..end], start) else {
            read.fault = "a frame without a command";
            break;
        };
        let body = start + 4..start + 4 + length;
        if body.end > end {
            read.fault = "a command longer than its frame";
            break;
        }
        let Some(command) = frequent_command(&data[body.clone()]) else {
            read.fault = "a command that cannot be read";
            break;
        };
        match command {
            (MESSAGE, _, mut message) => {
                read_entry(data, body.end..end, &mut message);
                read.received.push(Received::Message(message));
            }
            (SEND_RECEIPT, receipt, _) => {
                let at = *receipts.entry(receipt.producer_id).or_insert_with(|| {
                    read.received.push(Received::Receipts(Vec::new()));
                    read.received.len() - 1
                });
                if let Received::Receipts(known) = &mut read.received[at] {
                    known.push(receipt);
                }
            }
            _ => {
                receipts.clear();
                read.received.push(Received::Command(data[body].to_vec()));
            }
        }
        read.used = end;
    }
    read
}

fn u32_at(data: &[u8], at: usize) -> Option<usize> {
    let bytes = data.get(at..)?.first_chunk::<4>()?;
    Some(u32::from_be_bytes(*bytes) as usize)
}

fn u16_at(data: &[u8], at: usize) -> Option<u16> {
    let bytes = data.get(at..)?.first_chunk::<2>()?;
    Some(u16::from_be_bytes(*bytes))
}

/// Takes apart the entry that stands at `at`.
fn read_entry(data: &[u8], at: Range<usize>, message: &mut Message) {
    let entry = &data[at.clone()];
    let nothing = at.start..at.start;
    (message.metadata, message.payload) = (nothing.clone(), nothing);
    let Some(behind) = read_by_broker(entry, message) else {
        (message.index, message.broker_timestamp) = (None, 0);
        message.damaged = "what the broker says of it cannot be read";
        return;
    };
    message.num_messages = 1;
    match read_stored(entry, behind) {
        Ok((metadata, messages)) => {
            message.num_messages = messages.max(1);
            message.metadata = at.start + metadata.start..at.start + metadata.end;
            message.payload = at.start + metadata.end..at.end;
        }
        Err(damaged) => message.damaged = damaged,
    }
}

/// Reads BrokerEntryMetadata, if the entry begins with that, and says where the rest begins. None where it is damaged.
fn read_by_broker(entry: &[u8], message: &mut Message) -> Option<usize> {
    if u16_at(entry, 0)? != BROKER_MAGIC {
        return Some(0);
    }
    let end = 6 + u32_at(entry, 2)?;
    let mut fields = Fields(entry.get(6..end)?);
    while let Some(field) = fields.next()? {
        match field {
            (1, Field::Number(value)) => message.broker_timestamp = value,
            (2, Field::Number(value)) => message.index = Some(value),
            _ => {}
        }
    }
    Some(end)
}

/// Where the metadata is in an entry whose stored part begins at `at`, and how many messages it counts.
fn read_stored(entry: &[u8], at: usize) -> Result<(Range<usize>, i32), &'static str> {
    const UNREADABLE: &str = "its metadata cannot be read";
    let mut at = at;
    if u16_at(entry, at).ok_or(UNREADABLE)? == CHECKSUM_MAGIC {
        let checksum = u32_at(entry, at + 2);
        at += 6;
        let covered = entry.get(at..).unwrap_or_default();
        if checksum.ok_or(UNREADABLE)? != crc32c::crc32c(covered) as usize {
            return Err("its checksum does not fit");
        }
    }
    let start = at + 4;
    let end = start + u32_at(entry, at).ok_or(UNREADABLE)?;
    let mut fields = Fields(entry.get(start..end).ok_or("its metadata is longer than its frame")?);
    let mut messages = 1;
    while let Some(field) = fields.next().ok_or(UNREADABLE)? {
        if let (11, Field::Number(value)) = field {
            messages = value as i32;
        }
    }
    Ok((start..end, messages))
}

/// The type of a command, and what it is where it is of a frequent one; None where it cannot be read.
fn frequent_command(data: &[u8]) -> Option<(i32, Receipt, Message)> {
    let (mut kind, mut receipt, mut message) = (0, Receipt::default(), Message::default());
    let mut fields = Fields(data);
    while let Some(field) = fields.next()? {
        match field {
            (1, Field::Number(value)) => kind = value as i32,
            (7, Field::Bytes(bytes)) => read_receipt(bytes, &mut receipt)?,
            (9, Field::Bytes(bytes)) => read_message(bytes, &mut message)?,
            _ => {}
        }
    }
    Some((kind, receipt, message))
}

fn read_receipt(data: &[u8], receipt: &mut Receipt) -> Option<()> {
    let mut fields = Fields(data);
    while let Some(field) = fields.next()? {
        match field {
            (1, Field::Number(value)) => receipt.producer_id = value,
            (2, Field::Number(value)) => receipt.sequence_id = value,
            (3, Field::Bytes(bytes)) => read_place(bytes, &mut receipt.place)?,
            (4, Field::Number(value)) => receipt.highest_sequence_id = value,
            _ => {}
        }
    }
    Some(())
}

fn read_message(data: &[u8], message: &mut Message) -> Option<()> {
    let mut fields = Fields(data);
    while let Some(field) = fields.next()? {
        match field {
            (1, Field::Number(value)) => message.consumer_id = value,
            (2, Field::Bytes(bytes)) => read_place(bytes, &mut message.place)?,
            _ => {}
        }
    }
    Some(())
}

fn read_place(data: &[u8], place: &mut Place) -> Option<()> {
    let mut fields = Fields(data);
    while let Some(field) = fields.next()? {
        match field {
            (1, Field::Number(value)) => place.ledger = value as i64,
            (2, Field::Number(value)) => place.entry = value as i64,
            _ => {}
        }
    }
    Some(())
}

enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// The fields of a message; those of a fixed width, and groups, are passed over.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    /// None where the bytes are no protobuf, Some(None) at their end.
    fn next(&mut self) -> Option<Option<(u32, Field<'a>)>> {
        while !self.0.is_empty() {
            let (number, wire) = self.tag()?;
            (number != 0).then_some(())?;
            match wire {
                0 => return Some(Some((number, Field::Number(self.varint()?)))),
                2 => return Some(Some((number, Field::Bytes(self.sized()?)))),
                _ => self.pass(number, wire, 0)?,
            }
        }
        Some(None)
    }

    /// Passes over the value of a field.
    fn pass(&mut self, number: u32, wire: u32, depth: u32) -> Option<()> {
        match wire {
            0 => self.varint().map(|_| ()),
            1 => self.take(8).map(|_| ()),
            2 => self.sized().map(|_| ()),
            3 if depth < DEEPEST_GROUP => loop {
                match self.tag()? {
                    (ended, 4) => return (ended == number).then_some(()),
                    (inner, wire) => self.pass(inner, wire, depth + 1)?,
                }
            },
            5 => self.take(4).map(|_| ()),
            _ => None,
        }
    }

    fn tag(&mut self) -> Option<(u32, u32)> {
        let tag = self.short()?;
        Some((tag >> 3, tag & 7))
    }

    fn sized(&mut self) -> Option<&'a [u8]> {
        let length = self.short()?;
        self.take(usize::try_from(length).ok()?)
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    /// A number of 32 bits, in at most five bytes.
    fn short(&mut self) -> Option<u32> {
        let before = self.0.len();
        let value = self.varint()?;
        (before - self.0.len() <= 5).then_some(())?;
        u32::try_from(value).ok()
    }

    /// A number of 64 bits, in at most ten bytes; of the tenth one bit counts.
    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..70).step_by(7) {
            let (&byte, rest) = self.0.split_first()?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }
}
