//! Writes one blob into the content store, chunk by chunk.
//!
//! Source: containerd's `content.proto`, service `Content.Write`: one stream of STAT, WRITE and COMMIT,
//! each answered once and in order.

use std::collections::HashMap;
use std::time::Duration;

use containerd_client::services::v1 as api;
use containerd_client::services::v1::content_client::ContentClient;
use futures::channel::mpsc as pieces;
use futures::{SinkExt, StreamExt};
use tokio::sync::{OwnedRwLockReadGuard, mpsc};
use tonic::transport::Channel;
use tonic::{Request, Status};
use warren_registry::Digest;

use super::{ContentStore, Lease, unique_name};
use crate::connection::CallError;
use crate::error::Error;

/// A longer wait means a hung disk.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum number of unanswered chunks.
const MAX_UNANSWERED: usize = 3;
/// Time for containerd to close a stream whose writer was dropped.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(60);

type WriteAnswer = Result<api::WriteContentResponse, Status>;

/// State of a blob before it is written.
pub(crate) enum IngestTarget {
    /// The blob is complete; the lease retains it from now on.
    Present,
    /// The blob must be written.
    Absent(Box<Ingest>),
}

/// A partially written blob. Dropping it leaves the data to the garbage collector; the lease is released
/// when containerd has closed the blob.
pub(crate) struct Ingest {
    pieces: pieces::Sender<api::WriteContentRequest>,
    answers: mpsc::Receiver<WriteAnswer>,
    template: api::WriteContentRequest,
    unanswered: usize,
    digest: Digest,
}

impl Ingest {
    pub(super) async fn open(
        store: &ContentStore,
        lease: &Lease,
        digest: &Digest,
        size: u64,
    ) -> Result<IngestTarget, Error> {
        let template = api::WriteContentRequest {
            r#ref: unique_name("ingest"),
            total: size as i64,
            expected: digest.to_string(),
            ..Default::default()
        };
        let (mut pieces, requests) = pieces::channel(MAX_UNANSWERED);
        let stat = api::WriteContentRequest { action: api::WriteAction::Stat as i32, ..template.clone() };
        pieces.try_send(stat).expect("a channel that was just made has room");
        let (sender, mut answers) = mpsc::channel(MAX_UNANSWERED);
        let request = store.connection.request_with_lease(requests, &lease.header);
        tokio::spawn(forward_answers(store.connection.content(), request, sender, lease.writing().await));
        let status = match tokio::time::timeout(ANSWER_TIMEOUT, answers.recv()).await {
            Ok(answer) => answer.unwrap_or_else(|| Err(closed())),
            Err(_) => Err(timed_out()),
        };
        let status = match status {
            Ok(status) => status,
            Err(status) if CallError::from_status(&status) == CallError::AlreadyExists => {
                return Ok(IngestTarget::Present);
            }
            Err(status) => return Err(failed(digest, &status)),
        };
        let mut ingest = Self { pieces, answers, template, unanswered: 0, digest: digest.clone() };
        // Another namespace has the blob: the commit alone adds it to this one.
        if size > 0 && status.offset as u64 == size {
            ingest.template.offset = status.offset;
            return ingest.commit(HashMap::new()).await.map(|()| IngestTarget::Present);
        }
        Ok(IngestTarget::Absent(Box::new(ingest)))
    }

    /// Appends `data`, which should have 64 KiB to 1 MiB.
    pub async fn write(&mut self, data: Vec<u8>) -> Result<(), Error> {
        let length = data.len() as i64;
        let action = api::WriteAction::Write as i32;
        let piece = api::WriteContentRequest { action, data, ..self.template.clone() };
        let sent = self.send(piece).await;
        self.template.offset += length;
        sent.map_err(|status| failed(&self.digest, &status))
    }

    /// Commits the blob, whose bytes must have the declared digest and size.
    pub async fn commit(mut self, labels: HashMap<String, String>) -> Result<(), Error> {
        let action = api::WriteAction::Commit as i32;
        let last = api::WriteContentRequest { action, labels, ..self.template.clone() };
        let committed = async {
            self.send(last).await?;
            while self.unanswered > 0 {
                self.answer().await?;
            }
            Ok(())
        };
        match committed.await {
            Ok(()) => Ok(()),
            // A concurrent writer was faster, and the lease now retains the blob too.
            Err(status) if CallError::from_status(&status) == CallError::AlreadyExists => Ok(()),
            Err(status) => Err(failed(&self.digest, &status)),
        }
    }

    async fn send(&mut self, message: api::WriteContentRequest) -> Result<(), Status> {
        if self.pieces.send(message).await.is_err() {
            // The stream ended; its last answer has the reason.
            while self.unanswered > 0 {
                self.answer().await?;
            }
            return Err(self.answers.recv().await.and_then(Result::err).unwrap_or_else(closed));
        }
        self.unanswered += 1;
        while self.unanswered > MAX_UNANSWERED {
            self.answer().await?;
        }
        Ok(())
    }

    async fn answer(&mut self) -> Result<(), Status> {
        let answer =
            tokio::time::timeout(ANSWER_TIMEOUT, self.answers.recv()).await.map_err(|_| timed_out())?;
        self.unanswered -= 1;
        answer.ok_or_else(closed)?.map(|_| ())
    }
}

/// Forwards the answers of the store until it ends the stream: only then has containerd closed the blob.
/// The receiver is gone when the writer was dropped; the store then sees the end of the request stream.
async fn forward_answers(
    mut client: ContentClient<Channel>,
    request: Request<pieces::Receiver<api::WriteContentRequest>>,
    sender: mpsc::Sender<WriteAnswer>,
    _guard: OwnedRwLockReadGuard<()>,
) {
    let hand_on = async {
        match client.write(request).await {
            Ok(answers) => {
                let mut answers = answers.into_inner();
                while let Some(answer) = answers.next().await {
                    let _ = sender.send(answer).await;
                }
            }
            Err(status) => drop(sender.send(Err(status)).await),
        }
    };
    let give_up = async {
        sender.closed().await;
        tokio::time::sleep(CLOSE_TIMEOUT).await;
    };
    tokio::select! {
        () = hand_on => {}
        () = give_up => {}
    }
}

fn timed_out() -> Status {
    Status::deadline_exceeded(format!("no answer of the content store within {ANSWER_TIMEOUT:?}"))
}

fn closed() -> Status {
    Status::unavailable("the content store closed the stream")
}

fn failed(digest: &Digest, status: &Status) -> Error {
    let message = status.message();
    match message.contains("unexpected commit digest") || message.contains("unexpected commit size") {
        true => Error::DigestMismatch { what: format!("blob {digest}"), expected: digest.clone() },
        false => Error::from_status(format!("store blob {digest}"), status),
    }
}
