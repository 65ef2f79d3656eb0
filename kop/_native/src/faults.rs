//! What can be wrong with what a peer or a log gave.
//!
//! Owns: faults, and the exceptions of Python that they become.
//! Must not know: where they are found.

use pyo3::prelude::*;

/// What can be wrong with the input; each becomes the exception that the Python twin raises.
#[derive(Debug)]
pub enum Fault {
    /// Kafka records are malformed: PeerError of INVALID_RECORD.
    Record(String),
    /// A Pulsar entry is malformed: UndecodableEntryError with the reason "damaged".
    Entry(String),
}

pub type Result<T> = std::result::Result<T, Fault>;

pub fn record_fault<T>(text: impl Into<String>) -> Result<T> {
    Err(Fault::Record(text.into()))
}

pub fn entry_fault<T>(text: impl Into<String>) -> Result<T> {
    Err(Fault::Entry(text.into()))
}

impl Fault {
    /// The exception that the Python twin raises.
    pub fn raise(self, py: Python<'_>) -> PyErr {
        let made = match self {
            Fault::Record(text) => py.import("kop.errors").and_then(|errors| {
                let code = errors.getattr("ErrorCode")?.getattr("INVALID_RECORD")?;
                errors.getattr("PeerError")?.call1((text, code))
            }),
            Fault::Entry(text) => py
                .import("kop.records._pure")
                .and_then(|pure| pure.getattr("UndecodableEntryError")?.call1(("damaged", text))),
        };
        match made {
            Ok(error) => PyErr::from_value(error),
            Err(failed) => failed,
        }
    }
}
