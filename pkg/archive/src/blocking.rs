//! Both directions between blocking code and asynchronous streams.

use std::io::{self, Read, Write};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::runtime::Handle;

/// Reads from a stream in a thread that may block.
#[derive(Debug)]
pub struct BlockingReader<S> {
    stream: S,
    runtime: Handle,
}

/// Writes to a stream in a thread that may block.
#[derive(Debug)]
pub struct BlockingWriter<S> {
    stream: S,
    runtime: Handle,
}

impl<S> BlockingReader<S> {
    /// Must be called in a runtime, which then drives the stream.
    pub fn new(stream: S) -> Self {
        Self { stream, runtime: Handle::current() }
    }
}

impl<S> BlockingWriter<S> {
    /// Must be called in a runtime, which then drives the stream.
    pub fn new(stream: S) -> Self {
        Self { stream, runtime: Handle::current() }
    }
}

impl<S: AsyncRead + Unpin> Read for BlockingReader<S> {
    fn read(&mut self, part: &mut [u8]) -> io::Result<usize> {
        self.runtime.block_on(self.stream.read(part))
    }
}

impl<S: AsyncWrite + Unpin> Write for BlockingWriter<S> {
    fn write(&mut self, part: &[u8]) -> io::Result<usize> {
        self.runtime.block_on(self.stream.write(part))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.runtime.block_on(self.stream.flush())
    }
}
