//! Writers that know exactly what they may see.

use super::*;

/// What one writer came to see.
#[derive(Debug, Default)]
pub struct Tally {
    pub confirmed: u64,
    pub unconfirmed: u64,
    /// The number that the last confirmed write had.
    last: u64,
    doubtful: u64,
}

impl Tally {
    /// Nobody else writes there: each confirmed write has the number after the last, or one of the next after writes
    /// of which nobody knows whether they happened.
    fn note(&mut self, answer: Result<u64, ProposeError>) {
        match answer {
            Ok(number) => {
                let range = self.last + 1..=self.last + 1 + self.doubtful;
                assert!(range.contains(&number), "{number} is not in {range:?}");
                (self.last, self.doubtful) = (number, 0);
                self.confirmed += 1;
            }
            Err(ProposeError::Unconfirmed(_)) => {
                self.doubtful += 1;
                self.unconfirmed += 1;
            }
            Err(ProposeError::NoLeader(_) | ProposeError::Stopping | ProposeError::Busy) => {}
            Err(error) => panic!("{error:?}"),
        }
    }
}

/// Writes one after the other on a node of its own, until told to stop or the manager ends.
pub async fn write(store: Store, node: NodeId, stop: CancellationToken) -> Tally {
    let mut tally = Tally::default();
    while !stop.is_cancelled() {
        let answer = count(&store, node).await;
        let ended = matches!(answer, Err(ProposeError::Stopping | ProposeError::Unconfirmed(Doubt::Ended)));
        tally.note(answer);
        if ended {
            break;
        }
    }
    tally
}

/// Writers at every member; the leader is cut off, killed, or told to stop, again and again. Nobody gets a wrong
/// answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_becomes_of_the_leader_no_answer_is_wrong() {
    let mut world = World::forgetful([1, 2, 3]);
    world.prepare(30).await;
    let stop = CancellationToken::new();
    let mut writers = Vec::new();
    let mut nodes = (0..30).map(node);
    let begin =
        |world: &World, id: MemberId, node| tokio::spawn(write(world.store(id).clone(), node, stop.clone()));
    for id in [1, 2, 3] {
        writers.extend((0..4).map(|_| begin(&world, id, nodes.next().unwrap())));
    }
    for round in 0..6 {
        let leader = world.leader().await;
        let index = world.store(leader).read().index;
        world.until("writes go on", |world| world.store(leader).read().index > index + 30).await;
        match round % 3 {
            0 => world.cut_off(leader),
            1 => drop(world.kill(leader).await),
            _ => drop(world.stop(leader).await),
        }
        let rest = world.others(leader);
        let new = world.leader_of(&rest).await;
        let index = world.store(new).read().index;
        world.until("writes go on", |world| world.store(rest[0]).read().index > index + 30).await;
        match round % 3 {
            0 => world.let_back(leader),
            _ => {
                world.start(leader);
                writers.extend((0..4).map(|_| begin(&world, leader, nodes.next().unwrap())));
            }
        }
    }
    stop.cancel();
    let mut confirmed = 0;
    for writer in writers {
        let tally = tokio::time::timeout(PATIENCE, writer).await.unwrap().unwrap();
        confirmed += tally.confirmed;
    }
    assert!(confirmed > 300, "{confirmed}");
    world.agree().await;
}
