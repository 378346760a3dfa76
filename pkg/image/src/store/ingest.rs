//! Writing one blob into the content store, piece by piece as its bytes come.
//!
//! Source: containerd's `content.proto`, service `Content.Write`: one stream of STAT, WRITE and COMMIT, each
//! answered once and in order.

use std::collections::HashMap;
use std::time::Duration;

use containerd_client::services::v1 as api;
use containerd_client::services::v1::content_client::ContentClient;
use futures::channel::mpsc as pieces;
use futures::{SinkExt, StreamExt};
use tokio::sync::{OwnedRwLockReadGuard, mpsc};
use tonic::transport::Channel;
use tonic::{Request, Status};

use super::{Lease, Store, unique};
use crate::connection::Fault;
use crate::digest::Digest;
use crate::error::Error;

/// An answer that takes longer means a disk that hangs.
const ANSWER: Duration = Duration::from_secs(60);
/// Pieces under way before their answers are waited for.
const WINDOW: usize = 3;
/// What containerd gets to end a stream whose writer is gone.
const END: Duration = Duration::from_secs(60);

type Answer = Result<api::WriteContentResponse, Status>;

/// What the store has of a blob that is about to be written.
pub(crate) enum Opened {
    /// All of it; the lease holds it from now on.
    Present,
    /// Nothing.
    Absent(Box<Ingest>),
}

/// A blob half-way into the store. Dropping it leaves what was written to the garbage collector, and the lease is told
/// when containerd has closed it.
pub(crate) struct Ingest {
    pieces: pieces::Sender<api::WriteContentRequest>,
    answers: mpsc::Receiver<Answer>,
    template: api::WriteContentRequest,
    unanswered: usize,
    digest: Digest,
}

impl Ingest {
    pub(super) async fn open(
        store: &Store,
        lease: &Lease,
        digest: &Digest,
        size: u64,
    ) -> Result<Opened, Error> {
        let template = api::WriteContentRequest {
            r#ref: unique("ingest"),
            total: size as i64,
            expected: digest.to_string(),
            ..Default::default()
        };
        let (mut pieces, requests) = pieces::channel(WINDOW);
        let stat = api::WriteContentRequest { action: api::WriteAction::Stat as i32, ..template.clone() };
        pieces.try_send(stat).expect("a channel that was just made has room");
        let (told, mut answers) = mpsc::channel(WINDOW);
        let request = store.connection.leased(requests, &lease.header);
        tokio::spawn(relay(store.connection.content(), request, told, lease.writing().await));
        let status = match tokio::time::timeout(ANSWER, answers.recv()).await {
            Ok(answer) => answer.unwrap_or_else(|| Err(closed())),
            Err(_) => Err(late()),
        };
        let status = match status {
            Ok(status) => status,
            Err(status) if Fault::of(&status) == Fault::AlreadyExists => return Ok(Opened::Present),
            Err(status) => return Err(failed(digest, &status)),
        };
        let mut ingest = Self { pieces, answers, template, unanswered: 0, digest: digest.clone() };
        // Another namespace has it: the commit alone makes it ours too.
        if size > 0 && status.offset as u64 == size {
            ingest.template.offset = status.offset;
            return ingest.commit(HashMap::new()).await.map(|()| Opened::Present);
        }
        Ok(Opened::Absent(Box::new(ingest)))
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

    /// Ends the blob, whose bytes must have the digest and the size that were promised.
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
            // Somebody else was faster, and the lease now holds it too.
            Err(status) if Fault::of(&status) == Fault::AlreadyExists => Ok(()),
            Err(status) => Err(failed(&self.digest, &status)),
        }
    }

    async fn send(&mut self, message: api::WriteContentRequest) -> Result<(), Status> {
        if self.pieces.send(message).await.is_err() {
            // The stream ended; its last answer says why.
            while self.unanswered > 0 {
                self.answer().await?;
            }
            return Err(self.answers.recv().await.and_then(Result::err).unwrap_or_else(closed));
        }
        self.unanswered += 1;
        while self.unanswered > WINDOW {
            self.answer().await?;
        }
        Ok(())
    }

    async fn answer(&mut self) -> Result<(), Status> {
        let answer = tokio::time::timeout(ANSWER, self.answers.recv()).await.map_err(|_| late())?;
        self.unanswered -= 1;
        answer.ok_or_else(closed)?.map(|_| ())
    }
}

/// Hands on what the store answers until it ends the stream, whether anybody listens or not: only then has containerd
/// closed the blob. Nobody listens when the writer was dropped; the store then sees the end of what was sent.
async fn relay(
    mut client: ContentClient<Channel>,
    request: Request<pieces::Receiver<api::WriteContentRequest>>,
    told: mpsc::Sender<Answer>,
    _at_work: OwnedRwLockReadGuard<()>,
) {
    let hand_on = async {
        match client.write(request).await {
            Ok(answers) => {
                let mut answers = answers.into_inner();
                while let Some(answer) = answers.next().await {
                    let _ = told.send(answer).await;
                }
            }
            Err(status) => drop(told.send(Err(status)).await),
        }
    };
    let give_up = async {
        told.closed().await;
        tokio::time::sleep(END).await;
    };
    tokio::select! {
        () = hand_on => {}
        () = give_up => {}
    }
}

fn late() -> Status {
    Status::deadline_exceeded(format!("no answer of the content store within {ANSWER:?}"))
}

fn closed() -> Status {
    Status::unavailable("the content store closed the stream")
}

fn failed(digest: &Digest, status: &Status) -> Error {
    let message = status.message();
    match message.contains("unexpected commit digest") || message.contains("unexpected commit size") {
        true => Error::DigestMismatch { what: format!("blob {digest}"), wanted: digest.clone() },
        false => Error::of(format!("store blob {digest}"), status),
    }
}
