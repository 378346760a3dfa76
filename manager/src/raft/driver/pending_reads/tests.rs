use super::*;

type ReadReceiver = oneshot::Receiver<()>;

fn read(reads: &mut PendingReads) -> ReadReceiver {
    let (reply, told) = oneshot::channel();
    reads.add(reply);
    told
}

fn is_answered(told: &mut ReadReceiver) -> bool {
    told.try_recv().is_ok()
}

#[tokio::test(start_paused = true)]
async fn waiting_reads_share_one_round() {
    let (mut reads, now) = (PendingReads::default(), Instant::now());
    assert_eq!(reads.next_context(now), None);
    let (mut first, mut second) = (read(&mut reads), read(&mut reads));
    assert_eq!(reads.next_context(now), Some(1));
    let mut later = read(&mut reads);
    assert_eq!(reads.next_context(now), None, "one is under way");
    reads.on_read_index(1, 5);
    assert_eq!(reads.next_context(now), Some(2), "the next is asked as soon as the first is answered");
    reads.on_published(4);
    assert!(!is_answered(&mut first), "what it must see is not published yet");
    reads.on_published(5);
    assert!(is_answered(&mut first) && is_answered(&mut second) && !is_answered(&mut later));
    reads.on_read_index(2, 5);
    reads.on_published(5);
    assert!(is_answered(&mut later));
    assert_eq!(reads.next_context(now), None);
}

#[tokio::test(start_paused = true)]
async fn lost_round_is_retried_with_new_context() {
    let (mut reads, begun) = (PendingReads::default(), Instant::now());
    let mut first = read(&mut reads);
    assert_eq!(reads.next_context(begun), Some(1));
    let mut second = read(&mut reads);
    assert_eq!(reads.next_context(begun + RETRY_DELAY - Duration::from_millis(1)), None);
    assert_eq!(reads.next_context(begun + RETRY_DELAY), Some(2));
    // The late result of the first round answers only the reads of that round.
    reads.on_read_index(1, 7);
    reads.on_published(9);
    assert!(is_answered(&mut first) && !is_answered(&mut second));
    reads.on_read_index(1, 7);
    reads.on_read_index(2, 8);
    reads.on_published(9);
    assert!(is_answered(&mut second));
}

#[tokio::test(start_paused = true)]
async fn later_answer_covers_earlier_rounds() {
    let (mut reads, begun) = (PendingReads::default(), Instant::now());
    let mut told = read(&mut reads);
    assert_eq!(reads.next_context(begun), Some(1));
    reads.retry();
    assert_eq!(reads.next_context(begun), Some(2), "at once, since there is a new leader");
    reads.on_read_index(2, 3);
    reads.on_published(3);
    assert!(is_answered(&mut told));
}

#[tokio::test(start_paused = true)]
async fn cancelled_reads_start_no_round() {
    let (mut reads, begun) = (PendingReads::default(), Instant::now());
    drop(read(&mut reads));
    assert_eq!(reads.next_context(begun), None);
    let told = read(&mut reads);
    assert_eq!(reads.next_context(begun), Some(1));
    drop(told);
    assert_eq!(reads.next_context(begun + RETRY_DELAY), None);
    assert!(reads.in_flight.is_empty() && reads.waiting.is_empty());
}
