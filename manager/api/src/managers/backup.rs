//! Writes a backup while it is sent: a slow caller only slows down the writer of its own backup.

use std::io::{self, Write};

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use warren_bootstrap::backup::{self, BackupAuthor};
use warren_core::{Refusal, State};
use warren_proto::v1;
use warren_security::{Passphrase, SecretObjectKey};
use warren_store::problem::status_of;
use warren_types::Violation;
use zeroize::Zeroizing;

use crate::Api;

/// Bytes per message.
const CHUNK_BYTES: usize = 256 << 10;
/// Messages that may be queued for the caller.
const MAX_QUEUED_CHUNKS: usize = 4;

/// The messages of a backup.
pub type BackupStream = ReceiverStream<Result<v1::BackupChunk, Status>>;

type ChunkSender = mpsc::Sender<Result<v1::BackupChunk, Status>>;

impl Api {
    /// Writes a backup that contains all writes acknowledged so far.
    pub(super) async fn write_backup(&self, request: v1::BackupRequest) -> Result<BackupStream, Status> {
        let passphrase = Passphrase::parse(Zeroizing::new(request.passphrase));
        let passphrase = passphrase.map_err(|why| status_of(Violation::new("passphrase", why)))?;
        let (state, now) = (self.read_latest().await?.state.clone(), self.clock.now());
        let content_key = secret_object_key_of(&state, &self.secret_object_key).map_err(status_of)?;
        let authority = self.authority.load();
        let own = state.member(self.member_id).map(|own| own.name.clone());
        let writer = own.map(|name| BackupAuthor { name, is_manager_only: self.is_manager_only });
        let (chunks, stream) = mpsc::channel(MAX_QUEUED_CHUNKS);
        // The task ends with its caller, whose connection closes when the manager stops.
        tokio::task::spawn_blocking(move || {
            let mut out = ChunkWriter { chunks: chunks.clone(), chunk: Vec::with_capacity(CHUNK_BYTES) };
            let (state, writer) = ((&state, now), writer.as_ref());
            let written = backup::write(&passphrase, &authority, &content_key, state, writer, &mut out);
            if let Err(error) = written.and_then(|()| out.flush()) {
                // The caller may have disconnected.
                let _ = chunks
                    .blocking_send(Err(Status::internal(format!("writing the backup failed: {error}"))));
            }
        });
        Ok(ReceiverStream::new(stream))
    }
}

/// The key of everything in the state, which stays when `current` is replaced while the backup is written.
///
/// # Errors
/// [`Refusal::SecretObjectKeyReplaced`] since the state was read.
fn secret_object_key_of(state: &State, current: &SecretObjectKey) -> Result<SecretObjectKey, Refusal> {
    let key = current.snapshot();
    let is_of_all = state.sealed_items().all(|(_, data)| key.has_key_of(data));
    if is_of_all { Ok(key) } else { Err(Refusal::SecretObjectKeyReplaced) }
}

/// Sends the bytes written to it as messages.
struct ChunkWriter {
    chunks: ChunkSender,
    chunk: Vec<u8>,
}

impl Write for ChunkWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.chunk.len() == CHUNK_BYTES {
            self.flush()?;
        }
        let length = bytes.len().min(CHUNK_BYTES - self.chunk.len());
        self.chunk.extend_from_slice(&bytes[..length]);
        Ok(length)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.chunk.is_empty() {
            return Ok(());
        }
        let data = std::mem::replace(&mut self.chunk, Vec::with_capacity(CHUNK_BYTES));
        let gone = |_| io::Error::new(io::ErrorKind::BrokenPipe, "the caller disconnected");
        self.chunks.blocking_send(Ok(v1::BackupChunk { data: data.into() })).map_err(gone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio_stream::StreamExt;
    use warren_core::{Command, FEATURE_LEVEL};
    use warren_types::{ClusterId, Id, SecretObjectId, SecretObjectKind, Timestamp};

    #[test]
    fn key_that_is_replaced_while_a_backup_is_written_stays_in_it() {
        let (current, mut state, at) = (SecretObjectKey::generate(), State::new(), Timestamp(1));
        let ranges = vec!["10.0.0.0/8".parse().unwrap()];
        let cluster = ClusterId(Id(1));
        state.apply(1, 1, &Command::CreateCluster { id: cluster, ranges, feature_level: FEATURE_LEVEL, at });
        let id = SecretObjectId(Id(1));
        let (kind, name, labels) = (SecretObjectKind::Secret, "db".parse().unwrap(), Default::default());
        let data = current.seal(id, b"hunter2");
        state.apply(1, 2, &Command::CreateSecretObject { id, kind, name, labels, data: data.clone(), at });
        assert_eq!(state.sealed_items().count(), 1);
        let key = secret_object_key_of(&state, &current).unwrap();
        current.replace(&SecretObjectKey::generate());
        assert_eq!(&**key.open(id, &data).unwrap(), b"hunter2");
        let refused = secret_object_key_of(&state, &current).unwrap_err();
        assert!(matches!(refused, Refusal::SecretObjectKeyReplaced), "{refused}");
    }

    #[tokio::test]
    async fn backup_chunks_arrive_in_order() {
        let (chunks, stream) = mpsc::channel(MAX_QUEUED_CHUNKS);
        let writer = tokio::task::spawn_blocking(move || {
            let mut out = ChunkWriter { chunks, chunk: Vec::new() };
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
            assert!(!data.is_empty() && data.len() <= CHUNK_BYTES);
            all.extend_from_slice(&data);
        }
        writer.await.unwrap();
        let expected: Vec<u8> = (0..100u8).flat_map(|byte| vec![byte; 10_000]).collect();
        assert_eq!(all, expected);
    }

    #[tokio::test]
    async fn disconnected_caller_stops_backup() {
        let (chunks, stream) = mpsc::channel(MAX_QUEUED_CHUNKS);
        drop(stream);
        let written = tokio::task::spawn_blocking(move || {
            let mut out = ChunkWriter { chunks, chunk: Vec::new() };
            out.write_all(&vec![0; 2 * CHUNK_BYTES])
        });
        assert_eq!(written.await.unwrap().unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
