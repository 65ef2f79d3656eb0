//! The walk over the records of a produced batch: whether they are what the batch says, and nothing taken out of them.

use crate::faults::{record_fault, Result};
use crate::kafka::{walk_headers, Byte, Records};

/// Of more records without a key the numbers are not told: a peer can put nine million into 64 MiB.
pub const MOST_REJECTED: usize = 1_000;

/// The smallest timestamp that is a time, and the largest; -1 where no record has one.
pub struct Span {
    pub earliest: i64,
    pub latest: i64,
}

impl Span {
    pub fn new() -> Self {
        Span { earliest: -1, latest: -1 }
    }

    pub fn add(&mut self, timestamp: i64) {
        if timestamp >= 0 {
            self.latest = self.latest.max(timestamp);
            if self.earliest < 0 || timestamp < self.earliest {
                self.earliest = timestamp;
            }
        }
    }
}

pub struct Walked {
    pub times: Span,
    /// The first records without a key, as many as were asked for.
    pub without_key: Vec<u32>,
}

pub fn walk<B: Byte>(body: &[B], count: i64, base_timestamp: i64, most_rejected: usize) -> Result<Walked> {
    let mut found = Walked { times: Span::new(), without_key: Vec::new() };
    let mut records = Records::new(body, count, base_timestamp, None);
    let mut index = 0;
    while let Some(record) = records.next()? {
        let plain = record.section.len() == 1 && record.section[0].read() == 0;
        if !plain && walk_headers(record.section, |_| ()).is_none() {
            return record_fault(format!("the headers of record {index} of {count} do not end where it ends"));
        }
        found.times.add(record.timestamp);
        if found.without_key.len() < most_rejected && record.key.is_none() {
            found.without_key.push(index);
        }
        index += 1;
    }
    Ok(found)
}
