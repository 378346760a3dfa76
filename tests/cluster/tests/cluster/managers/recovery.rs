//! Going on after a loss: as the cluster of a backup, or alone.

use std::time::SystemTime;

use warren_log::Engine;
use warren_manager::Tuning;
use warren_manager::manager::Failed;
use warren_manager::recovery::alone::{self, Alone};
use warren_manager::recovery::backup;
use warren_manager::recovery::restore::{Restoring, Whom};
use warren_proto::v1;
use warren_security::Passphrase;
use warren_testkit::wait::eventually_async;

use super::group::Group;
use super::host::Host;
use crate::world::PATIENCE;

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
    worker.sync().await;
    let seen = worker.version;
    for host in &mut group.hosts {
        host.let_go().await;
    }
    let wrong = backup::read(&passphrase("another one"), bytes.clone()).unwrap_err();
    assert!(wrong.to_string().contains("passphrase"), "{wrong}");

    let mut host = Host::new("m9", Tuning::default());
    let opened = backup::read(&passphrase(PASSPHRASE), bytes).unwrap();
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
    again.has("the same tasks", |tasks| tasks.keys().eq(worker.tasks.keys())).await;
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
        assert!(matches!(failed, Ok(Failed::Removed)), "{failed:?}");
        group.hosts[number].stop().await;
        group.join_through(left, number).await;
    }
    group.all_vote().await;
}
