//! Pulsar's SEND frames, as `kop.records._pure` puts them together.

use crc32c::{crc32c, crc32c_append};

use crate::proto::{put_bytes, put_number, put_property};
use crate::text::{RAW_PROPERTY, RAW_VALUE};

const CHECKSUM_MAGIC: [u8; 2] = [0x0e, 0x01];
const SEND: u64 = 6;

/// What a frame says of its entry, but for the payload.
pub struct About<'a> {
    pub producer_id: u64,
    pub producer_name: &'a [u8],
    pub sequence_id: u64,
    pub publish_time: u64,
    pub count: u32,
    /// Pulsar's number of the payload's compression, and the payload's size without it.
    pub compressed: Option<(u64, u64)>,
    /// The payload is Kafka batches.
    pub raw: bool,
    /// The transaction of the entry: its most and its least bits, and whether the entry is sent in it.
    pub txn: Option<(u64, u64, bool)>,
}

/// All of a frame that stands before the payload.
pub fn head(about: &About<'_>, payload: &[u8]) -> Vec<u8> {
    let highest = about.sequence_id + u64::from(about.count) - 1;
    let mut metadata = Vec::with_capacity(64 + about.producer_name.len());
    put_bytes(&mut metadata, 1, about.producer_name);
    put_number(&mut metadata, 2, about.sequence_id);
    put_number(&mut metadata, 3, about.publish_time);
    if about.raw {
        put_property(&mut metadata, 4, RAW_PROPERTY, RAW_VALUE);
    }
    if let Some((codec, size)) = about.compressed {
        put_number(&mut metadata, 8, codec);
        put_number(&mut metadata, 9, size);
    }
    put_number(&mut metadata, 11, about.count.into());
    if let Some((most, least, _)) = about.txn {
        put_number(&mut metadata, 22, least);
        put_number(&mut metadata, 23, most);
    }
    put_number(&mut metadata, 24, highest);

    let mut send = Vec::with_capacity(40);
    put_number(&mut send, 1, about.producer_id);
    put_number(&mut send, 2, about.sequence_id);
    put_number(&mut send, 3, about.count.into());
    if let Some((most, least, true)) = about.txn {
        put_number(&mut send, 4, least);
        put_number(&mut send, 5, most);
    }
    put_number(&mut send, 6, highest);
    let mut command = Vec::with_capacity(48);
    put_number(&mut command, 1, SEND);
    put_bytes(&mut command, SEND, &send);

    let metadata_size = (metadata.len() as u32).to_be_bytes();
    let checksum = crc32c_append(crc32c_append(crc32c(&metadata_size), &metadata), payload);
    let total = 14 + command.len() + metadata.len() + payload.len();
    let mut out = Vec::with_capacity(total + 4 - payload.len());
    out.extend_from_slice(&(total as u32).to_be_bytes());
    out.extend_from_slice(&(command.len() as u32).to_be_bytes());
    out.extend_from_slice(&command);
    out.extend_from_slice(&CHECKSUM_MAGIC);
    out.extend_from_slice(&checksum.to_be_bytes());
    out.extend_from_slice(&metadata_size);
    out.extend_from_slice(&metadata);
    out
}

/// Bytes of the metadata in the head of a frame.
pub fn entry_size(head: &[u8]) -> usize {
    let command = head[4..8].iter().fold(0, |size, byte| size << 8 | usize::from(*byte));
    head.len() - 18 - command
}
