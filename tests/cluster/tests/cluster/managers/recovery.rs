//! Going on after a loss: as the cluster of a backup, or alone.

use std::time::SystemTime;

use tonic::Code;
use warren_log::Engine;
use warren_manager::Tuning;
use warren_manager::manager::{Failed, StartError};
use warren_manager::recovery::alone::{self, Alone};
use warren_manager::recovery::backup::{self, Writer};
use warren_manager::recovery::restore::{Restoring, Whom};
use warren_proto::status::{LIFE, OTHER_LIFE};
use warren_proto::{Problem, v1};
use warren_security::Passphrase;
use warren_testkit::wait::eventually_async;
use warren_types::NodeRole;

use super::group::Group;
use super::host::Host;
use crate::worker::Worker;
use crate::world::{PATIENCE, new_id, spec};

const PASSPHRASE: &str = "correct horse battery staple";

fn passphrase(text: &str) -> Passphrase {
    Passphrase::parse(text.to_owned().into()).unwrap()
}

impl Host {
    fn whom(&self) -> Whom {
        Whom { name: self.name.parse().unwrap(), address: self.advertised() }
    }
}

impl Group {
    async fn backup(&self, number: usize) -> Vec<u8> {
        let request = v1::BackupRequest { passphrase: PASSPHRASE.to_owned() };
        let mut chunks = self.managers(number).await.backup(request).await.unwrap().into_inner();
        let mut bytes = Vec::new();
        while let Some(chunk) = chunks.message().await.unwrap() {
            bytes.extend(chunk.data);
        }
        bytes
    }

    async fn services_of(&self, number: usize) -> Vec<String> {
        let request = v1::ListRequest { page_size: 1_000, ..Default::default() };
        let listed = self.services(number).await.list(request).await.unwrap().into_inner();
        listed.services.into_iter().map(|service| service.spec.unwrap().name).collect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_goes_on_elsewhere_and_workers_follow_it() {
    let mut group = Group::of_three().await;
    let node = group.node("n1").await;
    let at = group.follower().await;
    group.run(at, "web", 2).await;
    let mut worker = group.session(at, &node, None).await;
    worker.has("two tasks", |tasks| tasks.len() == 2).await;
    worker.run_all().await;
    let before = group.info(at).await.unwrap();
    let bytes = group.backup(at).await;
    // After the backup, and so not in it: the restored cluster is behind what its worker has seen.
    for number in 0..20 {
        group.create(at, &format!("later{number}")).await.unwrap();
    }
    // On a busy machine its session may have ended meanwhile.
    let had = worker.tasks;
    let mut worker = group.session(at, &node, worker.version).await;
    worker.sync().await;
    let seen = worker.version;
    for host in &mut group.hosts {
        host.let_go().await;
    }
    let wrong = backup::read(&passphrase("another one"), bytes.clone()).unwrap_err();
    assert!(wrong.to_string().contains("passphrase"), "{wrong}");

    let mut host = Host::new("m9", Tuning::default());
    let opened = backup::read(&passphrase(PASSPHRASE), bytes).unwrap();
    let writer = Writer { name: group.hosts[at].name.parse().unwrap(), manager_only: true };
    assert_eq!(opened.writer, Some(writer));
    let restoring = Restoring::begin(&host.data_dir()).unwrap();
    restoring.finish(opened, Engine::default(), host.whom(), SystemTime::now()).unwrap();
    assert!(Restoring::begin(&host.data_dir()).unwrap_err().is_taken(), "only where there is no manager");
    host.start(false).await.unwrap();
    group.hosts = vec![host];
    group.leader().await;
    let after = group.info(0).await.unwrap();
    assert_eq!(after.cluster_id, before.cluster_id);
    assert!(after.incarnation > before.incarnation);
    assert_eq!(group.services_of(0).await, ["web"]);
    // Its authority is the same, so everybody's certificate is good, and the new life counts for more.
    let mut again = group.session(0, &node, seen).await;
    again.has("the same tasks", |tasks| tasks.keys().eq(had.keys())).await;
    assert!(again.version.unwrap().incarnation > seen.unwrap().incarnation);
    group.shows_tasks(0, "them to run", 2, |task| task.state() == v1::TaskState::Running).await;
    group.add("m10").await;
    group.add("m11").await;
    group.all_vote().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_one_that_is_left_goes_on_alone() {
    let mut group = Group::of_three().await;
    let left = group.follower().await;
    for number in 0..5 {
        group.create(left, &format!("s{number}")).await.unwrap();
    }
    let before = group.info(left).await.unwrap();
    for host in &mut group.hosts {
        host.let_go().await;
    }
    let host = &group.hosts[left];
    let go_on = || alone::go_on(&host.data_dir(), Engine::default(), host.whom(), SystemTime::now()).unwrap();
    assert!(matches!(go_on(), Alone::Now { others: 2, .. }));
    assert_eq!(go_on(), Alone::Already, "twice does no harm");
    group.hosts[left].start(false).await.unwrap();
    eventually_async(PATIENCE, "writes to go on", || async {
        group.create(left, "alone").await.map_err(|status| status.to_string())
    })
    .await;
    let after = group.info(left).await.unwrap();
    assert_eq!((after.managers, after.services), (1, 6));
    assert_eq!(after.cluster_id, before.cluster_id);
    assert!(after.incarnation > before.incarnation);
    // The others come back as they were, and hear of no leader but one who says that they are managers no more; they
    // may join it.
    for number in (0..3).filter(|number| *number != left) {
        group.hosts[number].start(false).await.unwrap();
        let failed = tokio::time::timeout(PATIENCE, group.hosts[number].manager_mut().failed()).await;
        assert!(matches!(failed, Ok(Failed::Overtaken(life)) if life == after.incarnation), "{failed:?}");
        group.hosts[number].stop().await;
        group.join_through(left, number).await;
    }
    group.all_vote().await;
}

/// People forced the wrong one, and the right one is still the cluster after it asked to join that and was refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_was_overtaken_and_may_not_join_is_made_the_cluster_again() {
    let mut group = Group::of_three().await;
    let wrong = group.follower().await;
    let right = (wrong + 1) % 3;
    for host in &mut group.hosts {
        host.let_go().await;
    }
    let go_on = |host: &Host| {
        alone::go_on(&host.data_dir(), Engine::default(), host.whom(), SystemTime::now()).unwrap()
    };
    go_on(&group.hosts[wrong]);
    group.hosts[wrong].start(false).await.unwrap();
    eventually_async(PATIENCE, "writes to go on", || async {
        group.create(wrong, "wrong").await.map_err(|status| status.to_string())
    })
    .await;
    let token = group.token(NodeRole::Worker).await;
    group.hosts[right].start(false).await.unwrap();
    let failed = tokio::time::timeout(PATIENCE, group.hosts[right].manager_mut().failed()).await;
    assert!(matches!(failed, Ok(Failed::Overtaken(_))), "{failed:?}");
    group.hosts[right].stop().await;
    for _ in 0..2 {
        let through = group.hosts[wrong].address();
        let refused = group.hosts[right].join(through, &token).await.unwrap_err();
        assert!(refused.why.contains("warren worker join"), "{refused:?}");
        let again = group.hosts[right].start(false).await.unwrap_err();
        assert!(matches!(again, StartError::Overtaken(_)), "{again}");
    }
    group.hosts[wrong].let_go().await;
    assert!(matches!(go_on(&group.hosts[right]), Alone::Now { others: 2, .. }));
    group.hosts[right].start(false).await.unwrap();
    eventually_async(PATIENCE, "writes to go on", || async {
        group.create(right, "right").await.map_err(|status| status.to_string())
    })
    .await;
    assert_eq!(group.services_of(right).await, ["right"]);
    // The third one is of the first life still; let in, it forgets what it was.
    let third = (wrong + 2) % 3;
    group.hosts[third].start(false).await.unwrap();
    let failed = tokio::time::timeout(PATIENCE, group.hosts[third].manager_mut().failed()).await;
    assert!(matches!(failed, Ok(Failed::Overtaken(_))), "{failed:?}");
    group.hosts[third].stop().await;
    group.join_through(right, third).await;
    assert_eq!(group.services_of(third).await, ["right"]);
}

/// The others come back together while the one that went on is away: they have a majority of what was, and nobody tells
/// them. Whoever has seen the new life gets nothing of them; and they stop as soon as they reach it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_others_that_come_back_together_serve_nobody_who_has_seen_the_new_life_and_stop() {
    let mut group = Group::of_three().await;
    let node = group.node("n1").await;
    let left = group.follower().await;
    let others: Vec<usize> = (0..3).filter(|number| *number != left).collect();
    let mut worker = group.session(left, &node, None).await;
    worker.sync().await;
    for host in &mut group.hosts {
        host.let_go().await;
    }
    let host = &group.hosts[left];
    alone::go_on(&host.data_dir(), Engine::default(), host.whom(), SystemTime::now()).unwrap();
    group.hosts[left].start(false).await.unwrap();
    eventually_async(PATIENCE, "writes to go on", || async {
        group.create(left, "new").await.map_err(|status| status.to_string())
    })
    .await;
    let life = group.info(left).await.unwrap().incarnation;
    let mut worker = group.session(left, &node, worker.version).await;
    worker.sync().await;
    let seen = worker.version;
    assert_eq!(seen.unwrap().incarnation, life, "workers follow");
    group.hosts[left].let_go().await;

    for number in &others {
        group.hosts[*number].start(false).await.unwrap();
    }
    // Nothing connects the two halves, so who has not heard of the new life is served.
    eventually_async(PATIENCE, "the old ones to lead", || async {
        group.create(others[0], "old").await.map_err(|status| status.to_string())
    })
    .await;
    for number in others.clone() {
        let asked = |life: u64| {
            let id = new_id().to_string();
            let spec = Some((&spec(&format!("by{number}"), 0)).into());
            let mut create = tonic::Request::new(v1::CreateServiceRequest { id, spec });
            let mut list = super::group::stale(v1::ListRequest { page_size: 1_000, ..Default::default() });
            create.metadata_mut().insert(LIFE, life.into());
            list.metadata_mut().insert(LIFE, life.into());
            (create, list)
        };
        let mut services = group.services(number).await;
        let (create, list) = asked(life);
        for refused in [services.create(create).await.unwrap_err(), services.list(list).await.unwrap_err()] {
            let problem = Problem::from(&refused);
            assert_eq!((problem.code, problem.reason.as_str()), (Code::Unavailable, OTHER_LIFE), "{problem}");
            assert!(problem.message.contains(&format!("has seen life {life}")), "{problem}");
        }
        let channel = group.hosts[number].channel(&group.roots, Some(&node)).await;
        let mut stranger = Worker::greet(channel, seen).await;
        let refused = stranger.try_hear().await.unwrap_err();
        assert_eq!(Problem::from(&refused).reason, OTHER_LIFE, "{refused}");
    }
    let told = format!("somebody has seen life {life} of the cluster");
    group.shows("people to hear of it", |listed| listed.values().any(|it| it.reason.contains(&told))).await;

    group.hosts[left].start(false).await.unwrap();
    for number in others {
        let failed = tokio::time::timeout(PATIENCE, group.hosts[number].manager_mut().failed()).await;
        assert!(matches!(failed, Ok(Failed::Overtaken(later)) if later == life), "{failed:?}");
        group.hosts[number].stop().await;
        let again = group.hosts[number].start(false).await.unwrap_err();
        assert!(matches!(again, StartError::Overtaken(later) if later == life), "{again}");
        assert!(again.to_string().contains("`warren manager join`"), "{again}");
    }
    assert_eq!(group.services_of(left).await, ["new"]);
    for number in (0..3).filter(|number| *number != left) {
        group.join_through(left, number).await;
    }
    group.all_vote().await;
}
