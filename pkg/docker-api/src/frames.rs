//! The two forms of output: plain bytes of a terminal, and frames of two streams, each with a header of 8 bytes.

use bytes::Bytes;

/// Frames.
pub const MULTIPLEXED: &str = "application/vnd.docker.multiplexed-stream";
/// Plain bytes, of tasks and programs with a terminal.
pub const RAW: &str = "application/vnd.docker.raw-stream";

/// A stream of output, with its number in the headers of frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamType {
    Stdout = 1,
    Stderr = 2,
}

/// A part of the output of a stream.
pub fn frame(stream: StreamType, bytes: &[u8], is_raw: bool) -> Bytes {
    if is_raw {
        return Bytes::copy_from_slice(bytes);
    }
    let mut framed = Vec::with_capacity(bytes.len() + 8);
    // A part is far below 4 GiB.
    for part in bytes.chunks(u32::MAX as usize) {
        framed.extend_from_slice(&[stream as u8, 0, 0, 0]);
        framed.extend_from_slice(&u32::try_from(part.len()).unwrap_or(u32::MAX).to_be_bytes());
        framed.extend_from_slice(part);
    }
    framed.into()
}
