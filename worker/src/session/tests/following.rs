//! A node that has several managers: whom it goes to, when, and what it takes along.

use futures::FutureExt;
use futures::future::BoxFuture;
use warren_types::{ManagerAddress, NodeSettings};

use super::*;
use crate::session::dial::Dialling;

/// Managers that are dialled in turn; a dial of one that is away fails at once.
struct Several {
    managers: Vec<Dial>,
    state: Arc<Mutex<Dials>>,
}

#[derive(Default)]
struct Dials {
    away: Vec<bool>,
    /// Whom, and when.
    made: Vec<(usize, Instant)>,
    learned: Vec<ManagerAddress>,
    lasted: Vec<String>,
}

impl Dialling for Several {
    fn dial(&self) -> BoxFuture<'static, Result<Connected, DialError>> {
        let mut state = self.state.lock().unwrap();
        let turn = state.made.last().map_or(0, |(last, _)| (last + 1) % self.managers.len());
        state.made.push((turn, Instant::now()));
        let away = state.away[turn];
        let dial = self.managers[turn].dial();
        async move {
            if away {
                return Err(DialError::NoAddress);
            }
            Ok(Connected { manager: format!("m{turn}"), ..dial.await? })
        }
        .boxed()
    }

    fn known(&self) -> usize {
        self.managers.len()
    }

    fn learn(&self, managers: &[ManagerAddress]) {
        self.state.lock().unwrap().learned = managers.to_vec();
    }

    fn lasted(&self, manager: &str) {
        self.state.lock().unwrap().lasted.push(manager.to_owned());
    }
}

fn node(wishes: Wishes, count: usize) -> (Node, Vec<Manager>, Arc<Mutex<Dials>>) {
    let (managers, dials): (Vec<_>, Vec<_>) = std::iter::repeat_with(Manager::in_memory).take(count).unzip();
    let state = Arc::new(Mutex::new(Dials { away: vec![false; count], ..Dials::default() }));
    let several = Several { managers: dials, state: Arc::clone(&state) };
    (Node::with(wishes, true, Arc::new(several)), managers, state)
}

fn no_leader() -> tonic::Status {
    Problem::new(tonic::Code::Unavailable, "NO_LEADER", "the managers have no leader").into()
}

/// The settings of a node of a cluster that has two managers.
fn of_two() -> NodeSettings {
    let managers = vec!["m0:8080".parse().unwrap(), "m1:8080".parse().unwrap()];
    NodeSettings { managers, ..settings() }
}

/// A good session of the manager, longer than one that only begins.
async fn good(manager: &mut Manager) -> Session {
    let (mut session, _) = manager.session().await;
    session.welcome(&of_two()).await;
    let begun = Instant::now();
    while begun.elapsed() <= LASTED {
        sync(&mut session).await;
    }
    session
}

fn batch(frame: &FromWorker) -> Option<v1::Reports> {
    match frame {
        FromWorker::Reports(reports) => Some(reports.clone()),
        _ => None,
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_sent_elsewhere_goes_there_at_once_and_takes_everything_along() {
    let (node, mut managers, dials) = node(Wishes::default(), 3);
    let mut session = managers[0].welcomed().await;
    session.assign(7, vec![task(1)]).await;
    assert_eq!(ack(&mut session).await, at(7));
    node.context.reporter.tell(report(1));
    // It is not stored there.
    session.hear_until(batch).await;
    tokio::time::sleep(LASTED).await;
    let left = Instant::now();
    session.refuse(no_leader()).await;
    // One that has no leader either does not welcome it.
    managers[1].session().await.0.refuse(no_leader()).await;
    let (mut next, hello) = managers[2].session().await;
    assert!(left.elapsed() <= 2 * NEXT_WAIT, "{:?}", left.elapsed());
    assert_eq!(hello.version.unwrap(), at(7).into());
    next.welcome(&settings()).await;
    assert_eq!(next.hear_until(batch).await.reports, [(&report(1)).into()]);
    // It is behind; what it says later counts.
    next.assign(6, vec![]).await;
    next.assign(8, vec![task(1), task(2)]).await;
    assert_eq!(ack(&mut next).await, at(8));
    assert_eq!(node.numbers(), [1, 2]);
    assert_eq!(dials.lock().unwrap().lasted, ["m0"]);
}

#[tokio::test(start_paused = true)]
async fn a_manager_that_is_stopped_is_left_for_another() {
    let (node, mut managers, _) = node(Wishes::default(), 2);
    // Nobody answers any more, and nobody hangs up.
    let stopped = good(&mut managers[0]).await;
    let begun = Instant::now();
    let mut session = managers[1].welcomed().await;
    let most = settings().sync + pulse::ANSWER_WITHIN + NEXT_WAIT;
    assert!((pulse::SILENCE..=most).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    assert_eq!(sync(&mut session).await, at_nothing());
    assert_eq!(node.context.contact.standing().borrow().alone_for(Instant::now()), None);
    stopped.ended().await;
}

#[tokio::test(start_paused = true)]
async fn all_are_tried_at_once_and_then_again_and_again_after_a_while() {
    let (_node, _managers, dials) = node(Wishes::default(), 3);
    dials.lock().unwrap().away = vec![true; 3];
    tokio::time::sleep(Duration::from_secs(60)).await;
    let made = std::mem::take(&mut dials.lock().unwrap().made);
    assert!(made.iter().map(|(turn, _)| *turn).eq((0..made.len()).map(|i| i % 3)), "in turn");
    for round in made.chunks_exact(3) {
        let lasted = round[2].1 - round[0].1;
        assert!(lasted <= 2 * NEXT_WAIT, "{lasted:?} for a round");
    }
    let pauses = made.chunks_exact(3).zip(made.chunks_exact(3).skip(1));
    let pauses: Vec<Duration> = pauses.map(|(one, other)| other[0].1 - one[2].1).collect();
    assert!(pauses.is_sorted() && pauses[0] >= FIRST_WAIT / 2, "{pauses:?}");
    assert!(*pauses.last().unwrap() <= LONGEST_WAIT && pauses.len() >= 20, "{pauses:?}");
}

#[tokio::test(start_paused = true)]
async fn managers_that_end_each_session_at_once_are_not_overrun() {
    let (_node, mut managers, dials) = node(Wishes::default(), 2);
    let begun = Instant::now();
    let mut sessions = 0;
    while begun.elapsed() < Duration::from_secs(60) {
        managers[sessions % 2].welcomed().await.refuse(no_leader()).await;
        sessions += 1;
    }
    assert!(sessions < 100, "{sessions}");
    assert!(dials.lock().unwrap().lasted.is_empty());
}

#[tokio::test(start_paused = true)]
async fn managers_that_are_told_of_are_known_from_then_on() {
    let (node, mut managers, dials) = node(Wishes::default(), 2);
    let known: Vec<ManagerAddress> = vec!["m1:8080".parse().unwrap(), "m2:8080".parse().unwrap()];
    let (session, _) = managers[0].session().await;
    session.welcome(&NodeSettings { managers: known.clone(), ..settings() }).await;
    let mut wishes = node.context.wishes.subscribe();
    wishes.wait_for(|wishes| wishes.settings.is_some()).await.unwrap();
    assert!(dials.lock().unwrap().learned.is_empty());
    let others = vec!["m3:8080".parse().unwrap()];
    session.say(Frame::Settings((&NodeSettings { managers: others.clone(), ..settings() }).into())).await;
    let news = |wishes: &Wishes| wishes.settings.as_ref().is_some_and(|settings| settings.managers == others);
    wishes.wait_for(news).await.unwrap();
    drop(session);
    managers[1].welcomed().await;
    assert_eq!(dials.lock().unwrap().learned, others);
}

#[tokio::test(start_paused = true)]
async fn time_without_a_manager_counts_from_its_last_word() {
    let (node, mut managers, dials) = node(Wishes::default(), 2);
    dials.lock().unwrap().away[1] = true;
    let stopped = good(&mut managers[0]).await;
    let last_word = Instant::now();
    dials.lock().unwrap().away[0] = true;
    let mut standing = node.context.contact.standing();
    standing.wait_for(|standing| standing.alone_for(Instant::now()).is_some()).await.unwrap();
    assert_eq!(standing.borrow().alone_for(Instant::now()), Some(last_word.elapsed()));
    assert!(last_word.elapsed() >= pulse::SILENCE);
    dials.lock().unwrap().away[1] = false;
    // A manager that does not welcome the node is none.
    managers[1].session().await.0.refuse(no_leader()).await;
    assert!(standing.borrow().alone_for(Instant::now()).is_some());
    let session = managers[1].welcomed().await;
    standing.wait_for(|standing| standing.alone_for(Instant::now()).is_none()).await.unwrap();
    drop((stopped, session));
}
