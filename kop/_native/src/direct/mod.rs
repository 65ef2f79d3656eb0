//! Produce requests that are carried from their frame to their answer without Python code for each of them.
//!
//! Owns: the requests, entries and answers of that path while nothing unusual happens. There is no readable twin: the
//! twin is the ordinary path (`kop.handlers.produce`, `kop.storage.pulsar.partition`), to which everything goes that is
//! not taken here, and which takes over what is on its way as soon as something unusual happens (`hand_over`).
//! tests/storage/test_direct_writers.py and tests/handlers/test_direct_produce.py compare frames and answers of both,
//! byte for byte; tests/storage/test_direct_batches.py compares what becomes of batches when something unusual happens.
//! Must not know: sockets, when this path may be used, what to do about anything unusual.

mod answer;
mod outgoing;
mod requests;
mod writer;

pub use answer::DirectAnswer;
pub use outgoing::Outgoing;
pub use requests::DirectRequests;
pub use writer::{DirectBudget, DirectWriter};
