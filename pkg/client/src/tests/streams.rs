//! Watches that break and go on, archives that end and that do not.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, ReadBuf};
use tonic::{Code, Status};
use warren_proto::{Problem, v1};

use super::fake::{Manager, Script, service};
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
async fn a_watch_goes_on_where_it_broke_off() {
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
    let manager = Manager::new(Script { watches: watches.into(), ..Script::default() });
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
    assert_eq!(manager.asked(), ["0", "7", "7", "9", "21", "22", "30"]);
    assert!(matches!(&error, Error::Denied { .. }), "{error:?}");
}

#[tokio::test]
async fn watch_resumed_at_a_manager_that_lags_goes_on_at_the_next_one() {
    let lags = Problem::new(Code::Unavailable, "BEHIND", "entry 23207 is not applied here");
    let watches = [
        vec![resync(23_000), changed(23_207, "a")],
        vec![Err(lags.into())],
        vec![resync(23_207), changed(23_208, "b")],
    ];
    let manager = Manager::new(Script { watches: watches.into(), ..Script::default() });
    let (target, _serving) = manager.serve_socket();
    let client = Client::connect(&target).await.unwrap();
    let mut watch = client.cluster().watch("");
    let mut seen = Vec::new();
    for _ in 0..3 {
        seen.push(short(watch.next().await.unwrap()));
    }
    assert_eq!(seen, ["-", "a", "b"]);
    assert_eq!(manager.asked(), ["0", "23207", "23207"]);
}

/// A restore has given the same index to another change.
#[tokio::test]
async fn watch_resumed_in_another_life_of_the_cluster_says_to_list_again() {
    let watches = [vec![resync(5), changed(7, "a")], vec![resync(7), changed(8, "b")]];
    let manager = Manager::new(Script { watches: watches.into(), life: 1, ..Script::default() });
    let (target, _serving) = manager.serve_socket();
    let client = Client::connect(&target).await.unwrap();
    let mut watch = client.cluster().watch("");
    let mut seen = Vec::new();
    for _ in 0..4 {
        seen.push(short(watch.next().await.unwrap()));
        manager.0.lock().unwrap().life = if seen.len() < 2 { 1 } else { 2 };
    }
    assert_eq!(seen, ["-", "a", "-", "b"]);
}

#[tokio::test]
async fn a_watch_that_cannot_go_on_ends_in_time() {
    let manager = Manager::new(Script { watches: [vec![resync(1)]].into(), ..Script::default() });
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
    let manager = Manager::default();
    let (target, _serving) = manager.serve_socket();
    let client = Client::connect(&target).await.unwrap();
    let archive: Vec<u8> = (0..3_000_000_u32).map(|i| (i % 251) as u8).collect();
    let sent = io::Cursor::new(archive.clone());
    let mut import = client.images().import(vec!["n1".into()], sent).await.unwrap();
    let told = import.next().await.unwrap().unwrap();
    assert_eq!(told.event, Some(v1::import_progress::Event::Done(v1::Done {})));
    assert_eq!(import.next().await.unwrap(), None);
    let script = manager.0.lock().unwrap();
    assert!(script.archive == archive && script.archive_ended);
    assert_eq!(script.asked, ["n1"]);
}

/// Bytes until the manager has some of them, then an error.
struct Broken(tokio::sync::oneshot::Receiver<()>);

impl AsyncRead for Broken {
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
async fn a_part_of_an_archive_is_never_taken_for_the_whole() {
    let (first_piece, arrived) = tokio::sync::oneshot::channel();
    let (import_over, over) = tokio::sync::oneshot::channel();
    let (first_piece, import_over) = (Some(first_piece), Some(import_over));
    let manager = Manager::new(Script { first_piece, import_over, ..Script::default() });
    let (target, _serving) = manager.serve_socket();
    let client = Client::connect(&target).await.unwrap();
    let error = match client.images().import(Vec::new(), Broken(arrived)).await {
        Ok(mut import) => import.next().await.unwrap_err(),
        Err(error) => error,
    };
    assert_eq!(error.to_string(), "cannot read what is to be sent: the disk is broken");
    over.await.unwrap();
    assert!(!manager.0.lock().unwrap().archive_ended);
}
