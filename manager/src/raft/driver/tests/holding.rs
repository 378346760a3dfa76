//! Full, slow and broken disks: who is told what, and that nothing is lost or done twice.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::Instant;

use super::*;

const PATIENCE: Duration = Duration::from_secs(20);

/// Proposes until a write is held, without waiting for the answer.
async fn begin_to_hold(rig: &Rig) -> tokio::task::JoinHandle<Result<u64, ProposeError>> {
    let store = rig.store.clone();
    let waiting = tokio::spawn(async move { count(&store).await });
    rig.until(|published| published.held.is_some()).await;
    waiting
}

#[tokio::test]
async fn while_the_disk_is_full_writers_are_told_and_everybody_reads() {
    for mood in [Mood::Full, Mood::Shut, Mood::ShutAfterwards] {
        let (disk, dir) = (Faulty::new(Disk::new()), tempfile::tempdir().unwrap());
        let rig = rig(&disk, &dir, usize::MAX);
        rig.prepare().await;
        assert_eq!(rig.count().await.unwrap(), 1);
        let (before, cost) = (rig.store.read().index, rig.store.read().log);
        disk.set(mood);
        let waiting = begin_to_hold(&rig).await;
        let asked = Instant::now();
        for _ in 0..3 {
            let Err(ProposeError::Held(held)) = rig.count().await else { panic!("a refusal") };
            assert_eq!(
                (&*held.why, held.full),
                ("the disk of this manager is full: /disk/raft has 0B free", true)
            );
        }
        assert!(asked.elapsed() < Duration::from_secs(1), "refusals do not wait");
        let published = rig.store.read();
        assert_eq!(published.index, before, "what is not known to be durable is not shown");
        assert!(published.role.leader && published.state.cluster().is_some());
        let tries = disk.openings();
        tokio::time::timeout(PATIENCE, async {
            while disk.openings() < tries + 3 {
                tokio::task::yield_now().await;
            }
        })
        .await
        .expect("it is tried again and again");
        disk.set(Mood::Works);
        let answer = tokio::time::timeout(PATIENCE, waiting).await.unwrap().unwrap();
        assert_eq!(answer.unwrap(), 2, "the write that waited is done once");
        assert_eq!(rig.count().await.unwrap(), 3, "those that were refused are not done");
        let published = rig.store.read();
        assert!(published.held.is_none());
        assert!(
            published.log.writes >= cost.writes && published.log.bytes >= cost.bytes,
            "no figure goes back"
        );
        rig.stop.cancel();
        rig.end.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn whoever_waits_patiently_is_served_when_there_is_room() {
    let (disk, dir) = (Faulty::new(Disk::new()), tempfile::tempdir().unwrap());
    let rig = rig(&disk, &dir, usize::MAX);
    rig.prepare().await;
    disk.set(Mood::Full);
    let first = begin_to_hold(&rig).await;
    let patient = rig.store.propose_patiently(Command::OpenSession {
        node: NODE,
        description: description(),
        manager: 1,
        at: Timestamp(1),
    });
    let freed = async {
        tokio::task::yield_now().await;
        disk.set(Mood::Works);
    };
    let (answer, ()) = tokio::join!(patient, freed);
    assert_eq!((first.await.unwrap().unwrap(), answer.unwrap()), (1, Answer::Session { number: 2 }));
}

#[tokio::test]
async fn a_manager_that_is_told_to_stop_does_not_wait_for_room() {
    let (disk, dir) = (Faulty::new(Disk::new()), tempfile::tempdir().unwrap());
    let rig = rig(&disk, &dir, usize::MAX);
    rig.prepare().await;
    disk.set(Mood::Full);
    let waiting = begin_to_hold(&rig).await;
    rig.stop.cancel();
    tokio::time::timeout(PATIENCE, rig.end).await.unwrap().unwrap().unwrap();
    let answer = waiting.await.unwrap().unwrap_err();
    assert!(matches!(answer, ProposeError::Unconfirmed(Doubt::Ended)), "{answer:?}");
    assert!(matches!(count(&rig.store).await, Err(ProposeError::Stopping)));
    DataDir::open(dir.path()).expect("the directory is given back");
}

#[tokio::test]
async fn damage_ends_the_driver_and_answers_everybody() {
    let (disk, dir) = (Faulty::new(Disk::new()), tempfile::tempdir().unwrap());
    let rig = rig(&disk, &dir, usize::MAX);
    rig.prepare().await;
    disk.set(Mood::Damaged);
    let asked = tokio::join!(rig.count(), rig.count(), rig.count());
    for answer in [asked.0, asked.1, asked.2] {
        let ended = matches!(
            answer,
            Err(ProposeError::Unconfirmed(Doubt::Ended) | ProposeError::Log(_) | ProposeError::Held(_))
        );
        assert!(ended, "{answer:?}");
    }
    let error = rig.end.await.unwrap().unwrap_err();
    assert!(matches!(error, DriverError::Log(warren_log::Error::Corrupt { .. })), "{error}");
    assert!(rig.store.read().held.is_none(), "nobody waits for a manager that has ended");
    DataDir::open(dir.path()).expect("the directory is given back");
}

#[tokio::test]
async fn a_log_that_comes_back_as_another_one_is_not_trusted() {
    for is_newer in [false, true] {
        let (disk, dir) = (Faulty::new(Disk::new()), tempfile::tempdir().unwrap());
        let rig = rig(&disk, &dir, usize::MAX);
        rig.prepare().await;
        disk.set(Mood::Shut);
        let waiting = begin_to_hold(&rig).await;
        // Behind the driver's back: an entry that it did not write, or the loss of one.
        let mut other = disk.disk.open();
        let loaded = other.load().unwrap();
        let last = loaded.entries.last().unwrap().clone();
        let entries = match is_newer {
            true => {
                [1, 2].map(|more| warren_log::Entry { index: last.index + more, ..last.clone() }).to_vec()
            }
            false => vec![loaded.entries[0].clone()],
        };
        other.append(&LogBatch { entries, ..LogBatch::default() }).unwrap();
        disk.set(Mood::Works);
        let error = rig.end.await.unwrap().unwrap_err();
        assert!(matches!(error, DriverError::Discontinued { .. }), "{error}");
        assert!(matches!(waiting.await.unwrap(), Err(ProposeError::Unconfirmed(Doubt::Ended))));
    }
}

#[tokio::test]
async fn a_slow_disk_makes_writers_wait_and_share_and_nothing_else() {
    let (disk, dir) = (Faulty::new(Disk::new()), tempfile::tempdir().unwrap());
    let rig = rig(&disk, &dir, usize::MAX);
    rig.prepare().await;
    let (term, writes) = (rig.store.read().role.term, rig.store.read().log.writes);
    disk.set(Mood::Slow(Duration::from_millis(300)));
    let writers: Vec<_> = (0..40)
        .map(|_| {
            let store = rig.store.clone();
            tokio::spawn(async move { count(&store).await })
        })
        .collect();
    let mut numbers = Vec::new();
    for writer in writers {
        numbers.push(writer.await.unwrap().unwrap());
    }
    numbers.sort_unstable();
    assert_eq!(numbers, (1..=40).collect::<Vec<u64>>());
    let published = rig.store.read();
    assert_eq!(
        published.role,
        Role { leader: true, leader_id: Some(1), term, may_plan: true },
        "nobody campaigns"
    );
    assert!(published.log.writes - writes <= 5, "{} writes", published.log.writes - writes);
    rig.stop.cancel();
    rig.end.await.unwrap().unwrap();
}

/// Writers count, the disk fails again and again in every way that heals, snapshots come and go: every count is
/// answered once, with the next number, and all of them are on the disk in the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_the_disk_does_every_write_is_done_once() {
    const MOODS: [Mood; 4] =
        [Mood::Full, Mood::Shut, Mood::ShutAfterwards, Mood::Slow(Duration::from_millis(5))];
    for seed in 0..3 {
        let (disk, dir) = (Faulty::new(Disk::new()), tempfile::tempdir().unwrap());
        let rig = rig(&disk, &dir, 7);
        rig.prepare().await;
        let writers: Vec<_> = (0..6)
            .map(|_| {
                let store = rig.store.clone();
                tokio::spawn(async move {
                    let mut numbers = Vec::new();
                    while numbers.len() < 15 {
                        match count(&store).await {
                            Ok(number) => numbers.push(number),
                            Err(ProposeError::Held(_)) => tokio::task::yield_now().await,
                            Err(error) => panic!("{error}"),
                        }
                    }
                    numbers
                })
            })
            .collect();
        let mut chance = StdRng::seed_from_u64(seed);
        let stop = CancellationToken::new();
        let moody = tokio::spawn({
            let (disk, stop) = (disk.clone(), stop.clone());
            async move {
                while !stop.is_cancelled() {
                    let bad = MOODS[chance.random_range(0..MOODS.len())];
                    disk.set(if chance.random() { bad } else { Mood::Works });
                    // Not a wait: chance says when the disk changes its mind.
                    tokio::time::sleep(Duration::from_millis(chance.random_range(1..40))).await;
                }
                disk.set(Mood::Works);
            }
        });
        let mut numbers = Vec::new();
        for writer in writers {
            numbers.extend(tokio::time::timeout(3 * PATIENCE, writer).await.unwrap().unwrap());
        }
        stop.cancel();
        moody.await.unwrap();
        numbers.sort_unstable();
        assert_eq!(numbers, (1..=90).collect::<Vec<u64>>(), "seed {seed}");
        let applied = rig.store.read().index;
        rig.stop.cancel();
        rig.end.await.unwrap().unwrap();
        assert_eq!(disk.loaded().entries.last().unwrap().index, applied, "seed {seed}");
    }
}
