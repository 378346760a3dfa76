use super::*;

/// A body that comes in these pieces.
struct Pieces(VecDeque<Bytes>);

impl http_body::Body for Pieces {
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
    Body::new(Pieces(pieces.iter().map(|piece| Bytes::from_static(piece.as_bytes())).collect()))
}

/// Up to so many pieces.
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
async fn a_body_that_was_read_to_its_end_can_be_sent_again_and_again() {
    let (mut recorder, recording) = keep(body(&["a", "b"]));
    assert_eq!(read(&mut recorder, 9).await, ["a", "b"]);
    drop(recorder);
    let mut kept = recording.take().unwrap();
    for _ in 0..2 {
        assert_eq!(read(&mut kept.next().unwrap(), 9).await, ["a", "b"]);
    }
}

#[tokio::test]
async fn a_body_that_was_read_in_part_is_sent_once_with_its_rest() {
    let (mut recorder, recording) = keep(body(&["a", "b", "c"]));
    assert_eq!(read(&mut recorder, 1).await, ["a"]);
    drop(recorder);
    let mut kept = recording.take().unwrap();
    assert_eq!(read(&mut kept.next().unwrap(), 9).await, ["a", "b", "c"]);
    assert!(kept.next().is_none(), "the rest is gone");
}

#[tokio::test]
async fn a_body_that_is_too_long_is_not_kept() {
    let piece = Bytes::from(vec![0; MOST / 2 + 1]);
    let (mut recorder, recording) = keep(Body::new(Pieces([piece.clone(), piece].into())));
    assert_eq!(read(&mut recorder, 9).await.len(), 2, "its reader gets all of it");
    drop(recorder);
    assert!(recording.take().is_none());
}

#[tokio::test]
async fn nothing_is_kept_after_it_was_taken() {
    let (mut recorder, recording) = keep(body(&["a", "b"]));
    let read_by = recording.0.clone();
    drop(recording.take());
    assert_eq!(read(&mut recorder, 9).await, ["a", "b"]);
    drop(recorder);
    let read = lock(&read_by);
    assert!(read.frames.is_empty() && read.rest.is_none());
}
