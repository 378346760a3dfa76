use super::*;

type Told = oneshot::Receiver<()>;

fn read(reads: &mut Reads) -> Told {
    let (reply, told) = oneshot::channel();
    reads.add(reply);
    told
}

fn is_told(told: &mut Told) -> bool {
    told.try_recv().is_ok()
}

#[tokio::test(start_paused = true)]
async fn those_who_wait_share_a_question_and_those_who_come_later_the_next() {
    let (mut reads, now) = (Reads::default(), Instant::now());
    assert_eq!(reads.question(now), None);
    let (mut first, mut second) = (read(&mut reads), read(&mut reads));
    assert_eq!(reads.question(now), Some(1));
    let mut later = read(&mut reads);
    assert_eq!(reads.question(now), None, "one is under way");
    reads.answered(1, 5);
    assert_eq!(reads.question(now), Some(2), "the next is asked as soon as the first is answered");
    reads.published(4);
    assert!(!is_told(&mut first), "what it must see is not published yet");
    reads.published(5);
    assert!(is_told(&mut first) && is_told(&mut second) && !is_told(&mut later));
    reads.answered(2, 5);
    reads.published(5);
    assert!(is_told(&mut later));
    assert_eq!(reads.question(now), None);
}

#[tokio::test(start_paused = true)]
async fn a_lost_question_is_asked_again_under_a_new_number() {
    let (mut reads, begun) = (Reads::default(), Instant::now());
    let mut first = read(&mut reads);
    assert_eq!(reads.question(begun), Some(1));
    let mut second = read(&mut reads);
    assert_eq!(reads.question(begun + AGAIN - Duration::from_millis(1)), None);
    assert_eq!(reads.question(begun + AGAIN), Some(2));
    // The late answer to the first is good for those who asked it, and for nobody else.
    reads.answered(1, 7);
    reads.published(9);
    assert!(is_told(&mut first) && !is_told(&mut second));
    reads.answered(1, 7);
    reads.answered(2, 8);
    reads.published(9);
    assert!(is_told(&mut second));
}

#[tokio::test(start_paused = true)]
async fn the_answer_to_a_later_question_is_one_to_those_before() {
    let (mut reads, begun) = (Reads::default(), Instant::now());
    let mut told = read(&mut reads);
    assert_eq!(reads.question(begun), Some(1));
    reads.ask_again();
    assert_eq!(reads.question(begun), Some(2), "at once, since there is a new leader");
    reads.answered(2, 3);
    reads.published(3);
    assert!(is_told(&mut told));
}

#[tokio::test(start_paused = true)]
async fn nobody_asks_for_those_who_have_given_up() {
    let (mut reads, begun) = (Reads::default(), Instant::now());
    drop(read(&mut reads));
    assert_eq!(reads.question(begun), None);
    let told = read(&mut reads);
    assert_eq!(reads.question(begun), Some(1));
    drop(told);
    assert_eq!(reads.question(begun + AGAIN), None);
    assert!(reads.asked.is_empty() && reads.waiting.is_empty());
}
