//! Kafka records -> Pulsar messages.

use crate::faults::{record_fault, Result};
use crate::kafka::{headers, Headers, Record, Records};
use crate::proto::{put_bytes, put_number, put_property};
use crate::text::{
    as_properties, is_text, to_base64, EMPTY_PAYLOAD, EMPTY_PROPERTY, HEADERS_PROPERTY, TIMESTAMP_PROPERTY,
};
use crate::walk::{Span, MOST_REJECTED};

pub struct Packed {
    /// The payloads with the number of their messages.
    pub pieces: Vec<(Vec<u8>, u32)>,
    /// For a compacted topic the first records without a key.
    pub without_key: Vec<u32>,
    pub times: Span,
}

pub fn pack(
    body: &[u8],
    count: i64,
    base_timestamp: i64,
    append_time: Option<i64>,
    room: i64,
    compacted: bool,
) -> Result<Packed> {
    let room = usize::try_from(room).unwrap_or(0);
    let mut pieces = Vec::new();
    let mut without_key = Vec::new();
    let mut times = Span::new();
    let mut out = Vec::with_capacity(body.len() + body.len() / 8 + 64);
    let mut in_piece = 0;
    let mut single = Vec::with_capacity(256);
    let mut records = Records::new(body, count, base_timestamp, append_time);
    let mut index = 0;
    while let Some(record) = records.next()? {
        if record.key.is_none() && compacted && without_key.len() < MOST_REJECTED {
            without_key.push(index);
        }
        index += 1;
        times.add(record.timestamp);
        single.clear();
        let empty = compacted && record.value.is_some_and(<[u8]>::is_empty);
        let payload = if empty { Some(EMPTY_PAYLOAD) } else { record.value };
        if put_single(&mut single, &record, payload, empty).is_none() {
            return record_fault("a record's headers do not end where it ends");
        }
        let payload = payload.unwrap_or_default();
        if in_piece > 0 && out.len() + 4 + single.len() + payload.len() > room {
            pieces.push((std::mem::take(&mut out), in_piece));
            in_piece = 0;
        }
        out.extend_from_slice(&(single.len() as u32).to_be_bytes());
        out.extend_from_slice(&single);
        out.extend_from_slice(payload);
        in_piece += 1;
    }
    if in_piece > 0 {
        pieces.push((out, in_piece));
    }
    Ok(Packed { pieces, without_key, times })
}

/// Writes the SMM of a record; None where its headers are malformed. `empty`: the payload stands for no bytes.
fn put_single(out: &mut Vec<u8>, record: &Record<'_>, payload: Option<&[u8]>, empty: bool) -> Option<()> {
    if record.section != [0] {
        let (shown, all) = match headers(record.section)? {
            Headers::Few(headers) => {
                let shown = as_properties(&headers);
                let all = shown.len() == headers.len();
                (shown, all)
            }
            Headers::Many(_) => (Vec::new(), false),
        };
        if !all {
            put_property(out, 1, HEADERS_PROPERTY, &to_base64(record.section));
        }
        for (name, value) in shown {
            put_property(out, 1, name, value);
        }
    }
    if record.timestamp <= 0 {
        put_property(out, 1, TIMESTAMP_PROPERTY, record.timestamp.to_string().as_bytes());
    }
    if empty {
        put_property(out, 1, EMPTY_PROPERTY.0, EMPTY_PROPERTY.1);
    }
    let binary_key = record.key.is_some_and(|key| !is_text(key));
    if let Some(key) = record.key {
        if binary_key {
            put_bytes(out, 2, &to_base64(key));
        } else {
            put_bytes(out, 2, key);
        }
    }
    put_number(out, 3, payload.map_or(0, |payload| payload.len() as u64));
    if record.timestamp > 0 {
        put_number(out, 5, record.timestamp as u64);
    }
    if binary_key {
        put_number(out, 6, 1);
    }
    if payload.is_none() {
        put_number(out, 9, 1);
    }
    Some(())
}
