//! The stored output of containers: the format of the files, their writer, and their reader.
//!
//! The files are text with one record per line, described in [`record`]. They are rotated by size and
//! limited by count, and their numbers only increase ([`segment`]), so a reader finds the next one by
//! itself. Files of a newer version are rejected. A line is stored once the logger has read it from the
//! pipe and written it: nothing is synced, so a power cut can lose the last seconds; the rest of a partial
//! record is skipped and never precedes another record.
//!
//! [`record`], [`segment`] and [`writer`] are also compiled into the program `warren-logger` of
//! `pkg/container-programs/`, so they must use only the standard library. Only that program writes. Everything else
//! reads with [`OutputReader`]: from the end, from a time, and while the files are written. Start reading at
//! `writer.rs`, and at `reader/cursor.rs` for the other side.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod error;
mod reader;
pub mod record;
pub mod segment;
pub mod writer;

pub use error::Error;
pub use reader::{OutputEntry, OutputLine, OutputReader, ReadOptions};
pub use record::OutputStream;
