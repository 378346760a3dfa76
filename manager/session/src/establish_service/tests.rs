use std::future::poll_fn;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;
use tonic::codec::{EncodeBody, SingleMessageCompressionOverride};
use warren_proto::v1::manager_frame::Frame as Outgoing;
use warren_proto::v1::{AssignmentCurrent, AssignmentDiff};

use super::*;

type FrameResult = Result<ManagerFrame, Status>;

/// Something of about so many bytes.
fn long(bytes: usize) -> ManagerFrame {
    let removed = vec!["x".repeat(100); bytes / 100];
    ManagerFrame { frame: Some(Outgoing::Diff(AssignmentDiff { removed, ..Default::default() })) }
}

fn short(at: u64) -> ManagerFrame {
    ManagerFrame { frame: Some(Outgoing::Current(AssignmentCurrent { sent_at: at })) }
}

fn ours(stream: ReceiverStream<FrameResult>) -> impl Body<Data = Bytes, Error = Status> {
    FrameBody(Some(stream))
}

fn tonics(stream: ReceiverStream<FrameResult>) -> impl Body<Data = Bytes, Error = Status> {
    let encoder = CompactCodec::<ManagerFrame, WorkerFrame>::default().encoder();
    EncodeBody::new_server(encoder, stream, None, SingleMessageCompressionOverride::default(), None)
}

async fn next<B: Body<Data = Bytes, Error = Status>>(body: &mut Pin<Box<B>>) -> Option<Frame<Bytes>> {
    poll_fn(|context| body.as_mut().poll_frame(context)).await.transpose().unwrap()
}

/// Whether a body keeps the memory of a long frame while idle, and after a short one as well: the memory of
/// the frame itself, and that of a later short one.
async fn holds<B: Body<Data = Bytes, Error = Status>>(
    body: impl FnOnce(ReceiverStream<FrameResult>) -> B,
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
async fn sent_frames_release_their_memory() {
    assert_eq!(holds(ours).await, (false, false));
    // When this changes, this module is not needed any more.
    assert_eq!(holds(tonics).await, (true, true));
}

/// The bytes and the trailers of a body.
async fn collect<B: Body<Data = Bytes, Error = Status>>(
    body: impl FnOnce(ReceiverStream<FrameResult>) -> B,
    words: Vec<FrameResult>,
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
async fn frames_match_tonic_encoding() {
    let status =
        || Status::with_details(Code::Unavailable, "no leader – yet", Bytes::from_static(b"details"));
    for words in [
        || vec![],
        || vec![Ok(short(1))],
        || vec![Ok(ManagerFrame::default()), Ok(long(50_000)), Ok(short(2)), Ok(short(3))],
    ] {
        let ended = || words().into_iter().chain([Err(status())]).collect::<Vec<_>>();
        assert_eq!(collect(ours, words()).await, collect(tonics, words()).await);
        let (bytes, trailers) = collect(ours, ended()).await;
        assert_eq!((bytes, trailers.clone()), collect(tonics, ended()).await);
        let reported = Status::from_header_map(&trailers).unwrap();
        assert_eq!(
            (reported.code(), reported.message(), reported.details()),
            (Code::Unavailable, "no leader – yet", &b"details"[..])
        );
    }
}
