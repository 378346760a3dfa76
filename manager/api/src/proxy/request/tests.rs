use super::*;

/// A body with these frames.
struct ChunkedBody(VecDeque<Bytes>);

impl http_body::Body for ChunkedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Poll::Ready(self.0.pop_front().map(|piece| Ok(Frame::data(piece))))
    }
}

fn body(pieces: &[&'static str]) -> Body {
    Body::new(ChunkedBody(pieces.iter().map(|piece| Bytes::from_static(piece.as_bytes())).collect()))
}

/// Reads up to this number of frames.
async fn read<B: http_body::Body<Data = Bytes, Error = Status> + Unpin>(
    body: &mut B,
    most: usize,
) -> Vec<Bytes> {
    let mut pieces = Vec::new();
    while pieces.len() < most
        && let Some(frame) = std::future::poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await
    {
        pieces.extend(frame.unwrap().into_data());
    }
    pieces
}

#[tokio::test]
async fn fully_read_body_can_be_replayed_repeatedly() {
    let (mut recorder, recording) = record_body(body(&["a", "b"]));
    assert_eq!(read(&mut recorder, 9).await, ["a", "b"]);
    drop(recorder);
    let mut kept = recording.take().unwrap();
    for _ in 0..2 {
        assert_eq!(read(&mut kept.next_body().unwrap(), 9).await, ["a", "b"]);
    }
}

#[tokio::test]
async fn partly_read_body_is_replayed_once_with_rest() {
    let (mut recorder, recording) = record_body(body(&["a", "b", "c"]));
    assert_eq!(read(&mut recorder, 1).await, ["a"]);
    drop(recorder);
    let mut kept = recording.take().unwrap();
    assert_eq!(read(&mut kept.next_body().unwrap(), 9).await, ["a", "b", "c"]);
    assert!(kept.next_body().is_none(), "the rest is gone");
}

#[tokio::test]
async fn oversized_body_is_not_recorded() {
    let piece = Bytes::from(vec![0; MAX_RECORDED_BYTES / 2 + 1]);
    let (mut recorder, recording) = record_body(Body::new(ChunkedBody([piece.clone(), piece].into())));
    assert_eq!(read(&mut recorder, 9).await.len(), 2, "its reader gets all of it");
    drop(recorder);
    assert!(recording.take().is_none());
}

#[tokio::test]
async fn recording_stops_after_take() {
    let (mut recorder, recording) = record_body(body(&["a", "b"]));
    let read_by = recording.0.clone();
    drop(recording.take());
    assert_eq!(read(&mut recorder, 9).await, ["a", "b"]);
    drop(recorder);
    let read = lock(&read_by);
    assert!(read.frames.is_empty() && read.rest.is_none());
}
