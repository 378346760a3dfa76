use std::future::poll_fn;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;
use tonic::codec::{EncodeBody, SingleMessageCompressionOverride};
use warren_proto::v1::manager_frame::Frame as Outgoing;
use warren_proto::v1::{AssignmentDiff, SyncCurrent};

use super::*;

type Said = Result<ManagerFrame, Status>;

/// Something of about so many bytes.
fn long(bytes: usize) -> ManagerFrame {
    let removed = vec!["x".repeat(100); bytes / 100];
    ManagerFrame { frame: Some(Outgoing::Diff(AssignmentDiff { removed, ..Default::default() })) }
}

fn short(at: u64) -> ManagerFrame {
    ManagerFrame { frame: Some(Outgoing::Current(SyncCurrent { at })) }
}

fn ours(stream: ReceiverStream<Said>) -> impl Body<Data = Bytes, Error = Status> {
    Frames(Some(stream))
}

fn tonics(stream: ReceiverStream<Said>) -> impl Body<Data = Bytes, Error = Status> {
    let encoder = Frugal::<ManagerFrame, WorkerFrame>::default().encoder();
    EncodeBody::new_server(encoder, stream, None, SingleMessageCompressionOverride::default(), None)
}

async fn next<B: Body<Data = Bytes, Error = Status>>(body: &mut Pin<Box<B>>) -> Option<Frame<Bytes>> {
    poll_fn(|context| body.as_mut().poll_frame(context)).await.transpose().unwrap()
}

/// Whether a body holds on to the memory of a long frame while it has nothing to say, and after a short one as well:
/// that of the frame itself, and what a short one that came later is in.
async fn holds<B: Body<Data = Bytes, Error = Status>>(
    body: impl FnOnce(ReceiverStream<Said>) -> B,
) -> (bool, bool) {
    let (sender, receiver) = mpsc::channel(4);
    let mut body = Box::pin(body(ReceiverStream::new(receiver)));
    sender.send(Ok(long(20_000))).await.unwrap();
    let sent = next(&mut body).await.unwrap().into_data().unwrap();
    assert!(sent.len() > 20_000);
    let idle = !sent.is_unique();
    let there = sent.as_ptr_range();
    drop(sent);
    sender.send(Ok(short(1))).await.unwrap();
    let later = next(&mut body).await.unwrap().into_data().unwrap();
    (idle, there.contains(&later.as_ptr()) && !later.is_unique())
}

#[tokio::test]
async fn a_session_that_said_much_holds_nothing_of_it() {
    assert_eq!(holds(ours).await, (false, false));
    // Once this is otherwise, nothing here is needed any more.
    assert_eq!(holds(tonics).await, (true, true));
}

/// All that a body says: its bytes, and its trailers.
async fn said<B: Body<Data = Bytes, Error = Status>>(
    body: impl FnOnce(ReceiverStream<Said>) -> B,
    words: Vec<Said>,
) -> (Vec<u8>, HeaderMap) {
    let (sender, receiver) = mpsc::channel(words.len().max(1));
    for word in words {
        sender.send(word).await.unwrap();
    }
    drop(sender);
    let mut body = Box::pin(body(ReceiverStream::new(receiver)));
    let mut bytes = Vec::new();
    loop {
        assert!(!body.is_end_stream());
        match next(&mut body).await.unwrap().into_data() {
            Ok(data) => bytes.extend_from_slice(&data),
            Err(trailers) => {
                assert!(body.is_end_stream() && next(&mut body).await.is_none());
                return (bytes, trailers.into_trailers().unwrap());
            }
        }
    }
}

#[tokio::test]
async fn what_is_said_is_what_tonic_would_have_said() {
    let status =
        || Status::with_details(Code::Unavailable, "no leader – yet", Bytes::from_static(b"details"));
    for words in [
        || vec![],
        || vec![Ok(short(1))],
        || vec![Ok(ManagerFrame::default()), Ok(long(50_000)), Ok(short(2)), Ok(short(3))],
    ] {
        let ended = || words().into_iter().chain([Err(status())]).collect::<Vec<_>>();
        assert_eq!(said(ours, words()).await, said(tonics, words()).await);
        let (bytes, trailers) = said(ours, ended()).await;
        assert_eq!((bytes, trailers.clone()), said(tonics, ended()).await);
        let told = Status::from_header_map(&trailers).unwrap();
        assert_eq!(
            (told.code(), told.message(), told.details()),
            (Code::Unavailable, "no leader – yet", &b"details"[..])
        );
    }
}
