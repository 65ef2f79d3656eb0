//! What is ours among the properties, UTF-8 and base64.

use std::collections::HashMap;

use crate::kafka::Header;

pub const RESERVED: &[u8] = b"__kop_";
pub const HEADERS_PROPERTY: &[u8] = b"__kop_headers";
pub const TIMESTAMP_PROPERTY: &[u8] = b"__kop_timestamp";
/// Name and value: the payload stands for an empty value.
pub const EMPTY_PROPERTY: (&[u8], &[u8]) = (b"__kop_empty", b"1");
pub const EMPTY_PAYLOAD: &[u8] = &[0];
pub const RAW_PROPERTY: &[u8] = b"entry.format";
pub const RAW_VALUE: &[u8] = b"kafka";

pub fn is_text(data: &[u8]) -> bool {
    std::str::from_utf8(data).is_ok()
}

/// The headers that native clients see, in the order in which the last of each name comes.
pub fn as_properties<'a>(headers: &[Header<'a>]) -> Vec<(&'a [u8], &'a [u8])> {
    let last: HashMap<&[u8], usize> = headers.iter().enumerate().map(|(index, header)| (header.0, index)).collect();
    let shown = headers.iter().enumerate().filter_map(|(index, &(name, value))| {
        let value = value?;
        let plain = last[name] == index && !name.starts_with(RESERVED) && is_text(name) && is_text(value);
        plain.then_some((name, value))
    });
    shown.collect()
}

/// The timestamp in our property: -2^63 to 0, as a number is written and no other way.
pub fn marker(value: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(value).ok()?;
    let number: i64 = text.parse().ok()?;
    (number <= 0 && number.to_string() == text).then_some(number)
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

pub fn to_base64(data: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(data.len().div_ceil(3) * 4);
    for chunk in data.chunks(3) {
        let at = |index: usize| u32::from(chunk.get(index).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for place in 0..4 {
            let sextet = (bits >> (18 - 6 * place) & 63) as usize;
            out.push(if place <= chunk.len() { ALPHABET[sextet] } else { b'=' });
        }
    }
    out
}

fn sextet(byte: u8) -> Option<u32> {
    let value = match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    };
    Some(value.into())
}

/// None where `text` is not base64 of the standard alphabet. Padding may be missing.
pub fn from_base64(text: &[u8]) -> Option<Vec<u8>> {
    let core = text.strip_suffix(b"==").or_else(|| text.strip_suffix(b"=")).unwrap_or(text);
    let mut out = Vec::with_capacity(core.len() / 4 * 3 + 2);
    for chunk in core.chunks(4) {
        if chunk.len() == 1 {
            return None;
        }
        let mut bits = 0;
        for place in 0..4 {
            bits = bits << 6 | chunk.get(place).map_or(Some(0), |&byte| sextet(byte))?;
        }
        let bytes = bits.to_be_bytes();
        out.extend_from_slice(&bytes[1..chunk.len()]);
    }
    Some(out)
}
