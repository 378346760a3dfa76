//! Writes a backup while it is sent: a caller that reads slowly holds back its writer, and nothing else.

use std::io::{self, Write};

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use warren_proto::v1;
use warren_security::Passphrase;
use warren_types::Violation;
use zeroize::Zeroizing;

use crate::api::Api;
use crate::api::problem::status_of;
use crate::recovery::backup::{self, Writer};

/// Bytes in a message.
const CHUNK: usize = 256 << 10;
/// Messages that may wait for the caller.
const WAITING: usize = 4;

/// A backup on its way.
pub type BackupStream = ReceiverStream<Result<v1::BackupChunk, Status>>;

type Chunks = mpsc::Sender<Result<v1::BackupChunk, Status>>;

impl Api {
    /// Writes a backup of everything that was acknowledged by now.
    pub(super) async fn write_backup(&self, request: v1::BackupRequest) -> Result<BackupStream, Status> {
        let passphrase = Passphrase::parse(Zeroizing::new(request.passphrase));
        let passphrase = passphrase.map_err(|why| status_of(Violation::new("passphrase", why)))?;
        let (state, now) = (self.newest().await?.state.clone(), self.clock.now());
        let (authority, content_key) = (self.authority.clone(), self.content_key.clone());
        let own = state.member(self.member).map(|own| own.name.clone());
        let writer = own.map(|name| Writer { name, manager_only: self.manager_only });
        let (chunks, stream) = mpsc::channel(WAITING);
        // It ends with its caller, who is gone at the latest when the manager stops.
        tokio::task::spawn_blocking(move || {
            let mut out = Outgoing { chunks: chunks.clone(), chunk: Vec::with_capacity(CHUNK) };
            let (state, writer) = ((&state, now), writer.as_ref());
            let written = backup::write(&passphrase, &authority, &content_key, state, writer, &mut out);
            if let Err(error) = written.and_then(|()| out.flush()) {
                // Whoever has gone does not need it.
                let _ = chunks.blocking_send(Err(Status::internal(format!("the backup broke off: {error}"))));
            }
        });
        Ok(ReceiverStream::new(stream))
    }
}

/// Sends what is written to it.
struct Outgoing {
    chunks: Chunks,
    chunk: Vec<u8>,
}

impl Write for Outgoing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.chunk.len() == CHUNK {
            self.flush()?;
        }
        let taken = bytes.len().min(CHUNK - self.chunk.len());
        self.chunk.extend_from_slice(&bytes[..taken]);
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.chunk.is_empty() {
            return Ok(());
        }
        let data = std::mem::replace(&mut self.chunk, Vec::with_capacity(CHUNK));
        let gone = |_| io::Error::new(io::ErrorKind::BrokenPipe, "the caller is gone");
        self.chunks.blocking_send(Ok(v1::BackupChunk { data: data.into() })).map_err(gone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio_stream::StreamExt;

    #[tokio::test]
    async fn everything_arrives_in_its_order() {
        let (chunks, stream) = mpsc::channel(WAITING);
        let writer = tokio::task::spawn_blocking(move || {
            let mut out = Outgoing { chunks, chunk: Vec::new() };
            for byte in 0..100u8 {
                out.write_all(&vec![byte; 10_000]).unwrap();
            }
            out.flush().unwrap();
            out.flush().unwrap();
        });
        let mut all: Vec<u8> = Vec::new();
        let mut stream = ReceiverStream::new(stream);
        while let Some(chunk) = stream.next().await {
            let data = chunk.unwrap().data;
            assert!(!data.is_empty() && data.len() <= CHUNK);
            all.extend_from_slice(&data);
        }
        writer.await.unwrap();
        let wanted: Vec<u8> = (0..100u8).flat_map(|byte| vec![byte; 10_000]).collect();
        assert_eq!(all, wanted);
    }

    #[tokio::test]
    async fn a_caller_that_is_gone_ends_the_writer() {
        let (chunks, stream) = mpsc::channel(WAITING);
        drop(stream);
        let written = tokio::task::spawn_blocking(move || {
            let mut out = Outgoing { chunks, chunk: Vec::new() };
            out.write_all(&vec![0; 2 * CHUNK])
        });
        assert_eq!(written.await.unwrap().unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
