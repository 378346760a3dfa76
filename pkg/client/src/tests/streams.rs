//! Watches that break and go on, archives that end and that do not.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, ReadBuf};
use tonic::{Code, Status};
use warren_proto::{Problem, v1};

use super::scripted_server::{FakeScript, ScriptedApiServer, service};
use crate::{Change, Client, Error};

type Event = Result<v1::WatchEvent, Status>;

fn resync(index: u64) -> Event {
    Ok(v1::WatchEvent { index, change: Some(Change::Resync(v1::Resync {})) })
}

fn changed(index: u64, name: &str) -> Event {
    Ok(v1::WatchEvent { index, change: Some(Change::Service(service(name))) })
}

/// `-` for a resync, the name for a service.
fn short(change: Change) -> String {
    match change {
        Change::Service(service) => service.spec.unwrap().name,
        Change::Resync(_) => "-".to_owned(),
        other => format!("{other:?}"),
    }
}

#[tokio::test]
async fn broken_watch_resumes_at_its_index() {
    let watches = [
        vec![resync(5), changed(7, "a")],
        vec![Err(Status::unavailable("the manager stops"))],
        // Goes on exactly there: nothing was missed, nothing is said.
        vec![resync(7), changed(9, "b")],
        // Too much was missed.
        vec![resync(20), changed(21, "c")],
        // A manager that goes on without a word.
        vec![changed(22, "d")],
        // Something that this version does not know.
        vec![Ok(v1::WatchEvent { index: 30, change: None })],
        vec![Err(Problem::new(Code::PermissionDenied, "DENIED", "no longer").into())],
    ];
    let manager = ScriptedApiServer::new(FakeScript { watches: watches.into(), ..FakeScript::default() });
    let (target, _serving) = manager.serve_socket();
    let client = Client::connect(&target).await.unwrap();
    let mut watch = client.cluster().watch("");
    let mut seen = Vec::new();
    let error = loop {
        match watch.next().await {
            Ok(change) => seen.push(short(change)),
            Err(error) => break error,
        }
    };
    assert_eq!(seen, ["-", "a", "b", "-", "c", "d", "-"]);
    assert_eq!(manager.requests(), ["0", "7", "7", "9", "21", "22", "30"]);
    assert!(matches!(&error, Error::Denied { .. }), "{error:?}");
}

#[tokio::test]
async fn watch_skips_lagging_manager() {
    let lags = Problem::new(Code::Unavailable, "MANAGER_BEHIND", "entry 23207 is not applied here");
    let watches = [
        vec![resync(23_000), changed(23_207, "a")],
        vec![Err(lags.into())],
        vec![resync(23_207), changed(23_208, "b")],
    ];
    let manager = ScriptedApiServer::new(FakeScript { watches: watches.into(), ..FakeScript::default() });
    let (target, _serving) = manager.serve_socket();
    let client = Client::connect(&target).await.unwrap();
    let mut watch = client.cluster().watch("");
    let mut seen = Vec::new();
    for _ in 0..3 {
        seen.push(short(watch.next().await.unwrap()));
    }
    assert_eq!(seen, ["-", "a", "b"]);
    assert_eq!(manager.requests(), ["0", "23207", "23207"]);
}

/// A restore has given the same index to another change.
#[tokio::test]
async fn watch_resumed_in_other_incarnation_resyncs() {
    let watches = [vec![resync(5), changed(7, "a")], vec![resync(7), changed(8, "b")]];
    let manager = ScriptedApiServer::new(FakeScript {
        watches: watches.into(),
        incarnation: 1,
        ..FakeScript::default()
    });
    let (target, _serving) = manager.serve_socket();
    let client = Client::connect(&target).await.unwrap();
    let mut watch = client.cluster().watch("");
    let mut seen = Vec::new();
    for _ in 0..4 {
        seen.push(short(watch.next().await.unwrap()));
        manager.0.lock().unwrap().incarnation = if seen.len() < 2 { 1 } else { 2 };
    }
    assert_eq!(seen, ["-", "a", "-", "b"]);
}

#[tokio::test]
async fn watch_that_cannot_continue_ends_in_time() {
    let manager =
        ScriptedApiServer::new(FakeScript { watches: [vec![resync(1)]].into(), ..FakeScript::default() });
    let (target, (dir, serving)) = manager.serve_socket();
    let client = Client::connect(&target).await.unwrap();
    let mut watch = client.cluster().watch("");
    assert_eq!(short(watch.next().await.unwrap()), "-");
    drop((dir, serving));
    tokio::time::pause();
    let error = watch.next().await.unwrap_err();
    assert!(matches!(&error, Error::Unreachable { .. } | Error::NoAnswer { .. }), "{error:?}");
}

#[tokio::test]
async fn an_archive_arrives_whole() {
    let manager = ScriptedApiServer::default();
    let (target, _serving) = manager.serve_socket();
    let client = Client::connect(&target).await.unwrap();
    let archive: Vec<u8> = (0..3_000_000_u32).map(|i| (i % 251) as u8).collect();
    let sent = io::Cursor::new(archive.clone());
    let mut import = client.images().import(vec!["n1".into()], sent).await.unwrap();
    let reported = import.next().await.unwrap().unwrap();
    assert_eq!(reported.event, Some(v1::import_progress::Event::Done(v1::NodeDone {})));
    assert_eq!(import.next().await.unwrap(), None);
    let script = manager.0.lock().unwrap();
    assert!(script.archive == archive && script.archive_ended);
    assert_eq!(script.requests, ["n1"]);
}

/// Bytes until the manager has some of them, then an error.
struct FailingReader(tokio::sync::oneshot::Receiver<()>);

impl AsyncRead for FailingReader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if Pin::new(&mut self.0).poll(context).is_ready() {
            return Poll::Ready(Err(io::Error::other("the disk is broken")));
        }
        buffer.put_slice(&vec![0; buffer.remaining()]);
        Poll::Ready(Ok(()))
    }
}

#[tokio::test]
async fn partial_archive_is_not_accepted() {
    let (first_piece, arrived) = tokio::sync::oneshot::channel();
    let (import_ended, over) = tokio::sync::oneshot::channel();
    let (first_piece, import_ended) = (Some(first_piece), Some(import_ended));
    let manager = ScriptedApiServer::new(FakeScript { first_piece, import_ended, ..FakeScript::default() });
    let (target, _serving) = manager.serve_socket();
    let client = Client::connect(&target).await.unwrap();
    let error = match client.images().import(Vec::new(), FailingReader(arrived)).await {
        Ok(mut import) => import.next().await.unwrap_err(),
        Err(error) => error,
    };
    assert_eq!(error.to_string(), "cannot read the input: the disk is broken");
    over.await.unwrap();
    assert!(!manager.0.lock().unwrap().archive_ended);
}
