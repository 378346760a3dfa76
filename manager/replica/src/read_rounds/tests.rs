use super::*;

const NOW: Duration = Duration::from_secs(7);

fn next(reads: &mut ReadRounds<char>, now: Duration) -> Option<u64> {
    reads.next_context(now, |_| false)
}

#[test]
fn waiting_reads_share_one_round() {
    let mut reads = ReadRounds::default();
    assert_eq!(next(&mut reads, NOW), None);
    reads.add('a');
    reads.add('b');
    assert_eq!(next(&mut reads, NOW), Some(1));
    reads.add('c');
    assert_eq!(next(&mut reads, NOW), None, "one is under way");
    reads.on_read_index(1, 5);
    assert_eq!(next(&mut reads, NOW), Some(2), "the next is asked as soon as the first is answered");
    assert_eq!(reads.take_ready(4), [], "what they must see is not published yet");
    assert_eq!(reads.take_ready(5), ['a', 'b']);
    reads.on_read_index(2, 5);
    assert_eq!(reads.take_ready(5), ['c']);
    assert_eq!(next(&mut reads, NOW), None);
}

#[test]
fn lost_round_is_retried_with_new_context() {
    let mut reads = ReadRounds::default();
    reads.add('a');
    assert_eq!(next(&mut reads, NOW), Some(1));
    reads.add('b');
    assert_eq!(next(&mut reads, NOW + RETRY_DELAY - Duration::from_millis(1)), None);
    assert_eq!(next(&mut reads, NOW + RETRY_DELAY), Some(2));
    // The late result of the first round answers only the reads of that round.
    reads.on_read_index(1, 7);
    assert_eq!(reads.take_ready(9), ['a']);
    reads.on_read_index(1, 7);
    reads.on_read_index(2, 8);
    assert_eq!(reads.take_ready(9), ['b']);
}

#[test]
fn later_answer_covers_earlier_rounds() {
    let mut reads = ReadRounds::default();
    reads.add('a');
    assert_eq!(next(&mut reads, NOW), Some(1));
    reads.retry();
    assert_eq!(next(&mut reads, NOW), Some(2), "at once, since there is a new leader");
    reads.on_read_index(2, 3);
    assert_eq!(reads.take_ready(3), ['a']);
}

#[test]
fn cancelled_reads_start_no_round() {
    let mut reads = ReadRounds::default();
    reads.add('a');
    assert_eq!(reads.next_context(NOW, |_| true), None);
    reads.add('b');
    assert_eq!(next(&mut reads, NOW), Some(1));
    assert_eq!(reads.next_context(NOW + RETRY_DELAY, |_| true), None);
    assert!(reads.in_flight.is_empty() && reads.waiting.is_empty());
}
