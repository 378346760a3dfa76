//! Recovery after a loss: from a backup, or with one remaining manager.

use std::time::{Duration, SystemTime};

use tonic::Code;
use warren_bootstrap::backup::{self, BackupAuthor};
use warren_bootstrap::force_new_cluster::{self, ForceNewClusterOutcome};
use warren_bootstrap::restore::{BackupRestore, ManagerContact};
use warren_log::LogEngine;
use warren_manager::ManagerTuning;
use warren_manager::manager::{ManagerFailure, ManagerStartError};
use warren_proto::status::{INCARNATION, OTHER_INCARNATION};
use warren_proto::{Problem, v1};
use warren_security::Passphrase;
use warren_testkit::wait::eventually_async;
use warren_types::NodeRole;

use super::certificates::{LONG, age_membership, authority};
use super::group::{ManagerGroup, repeated};
use super::host::ManagerHost;
use super::workers::{attempts, processes, runs};
use crate::fixture::{WAIT_DEADLINE, new_id, spec};
use crate::worker::ScriptedWorker;

const PASSPHRASE: &str = "correct horse battery staple";

fn passphrase(text: &str) -> Passphrase {
    Passphrase::parse(text.to_owned().into()).unwrap()
}

impl ManagerHost {
    fn restore_target(&self) -> ManagerContact {
        ManagerContact { name: self.name.parse().unwrap(), address: self.advertised() }
    }
}

impl ManagerGroup {
    async fn backup(&self, number: usize) -> Vec<u8> {
        let request = v1::BackupRequest { passphrase: PASSPHRASE.to_owned() };
        let managers = self.managers(number).await;
        let begun = repeated(|| async { managers.clone().backup(request.clone()).await }).await;
        let mut chunks = begun.unwrap().into_inner();
        let mut bytes = Vec::new();
        while let Some(chunk) = chunks.message().await.unwrap() {
            bytes.extend(chunk.data);
        }
        bytes
    }

    async fn services_of(&self, number: usize) -> Vec<String> {
        let request = v1::ListServicesRequest { page_size: 1_000, ..Default::default() };
        let services = self.services(number).await;
        let listed = repeated(|| async { services.clone().list(request.clone()).await }).await;
        listed.unwrap().into_inner().services.into_iter().map(|service| service.spec.unwrap().name).collect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restored_backup_takes_over_workers() {
    let mut group = ManagerGroup::of_three().await;
    let node = group.node("n1").await;
    let at = group.follower().await;
    group.run(at, "web", 2).await;
    let mut worker = group.session(at, &node, None).await;
    worker.has("two tasks", |tasks| tasks.len() == 2).await;
    worker.run_all().await;
    let before = repeated(|| group.info(at)).await.unwrap();
    let bytes = group.backup(at).await;
    // After the backup: the restored cluster is behind the version that its worker has seen.
    for number in 0..20 {
        group.create(at, &format!("later{number}")).await.unwrap();
    }
    // On a busy machine its session may have ended meanwhile.
    let had = worker.tasks;
    let mut worker = group.session(at, &node, worker.version).await;
    worker.sync().await;
    let seen = worker.version;
    for host in &mut group.hosts {
        host.drop_manager().await;
    }
    let wrong = backup::read(&passphrase("another one"), bytes.clone()).unwrap_err();
    assert!(wrong.to_string().contains("passphrase"), "{wrong}");

    let mut host = ManagerHost::new("m9", ManagerTuning::default());
    let opened = backup::read(&passphrase(PASSPHRASE), bytes).unwrap();
    let writer = BackupAuthor { name: group.hosts[at].name.parse().unwrap(), is_manager_only: true };
    assert_eq!(opened.author, Some(writer));
    let restoring = BackupRestore::begin(&host.data_dir()).unwrap();
    restoring.finish(opened, LogEngine::default(), host.restore_target(), SystemTime::now()).unwrap();
    assert!(
        BackupRestore::begin(&host.data_dir()).unwrap_err().is_directory_in_use(),
        "only where there is no manager"
    );
    host.start(false).await.unwrap();
    group.hosts = vec![host];
    group.use_administrator_of(0).await;
    group.leader().await;
    let after = group.info(0).await.unwrap();
    assert_eq!(after.cluster_id, before.cluster_id);
    assert!(after.incarnation > before.incarnation);
    assert_eq!(group.services_of(0).await, ["web"]);
    // The CA is the same, so all certificates are valid, and the new incarnation supersedes the old one.
    let mut again = group.session(0, &node, seen).await;
    again.has("the same tasks", |tasks| tasks.keys().eq(had.keys())).await;
    assert!(again.version.unwrap().incarnation > seen.unwrap().incarnation);
    group.shows_tasks(0, "them to run", 2, |task| task.state() == v1::TaskState::Running).await;
    group.add("m10").await;
    group.add("m11").await;
    group.all_vote().await;
}

/// The backup is older than the certificates of all nodes: that of one has expired since, that of another was renewed.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn restored_backup_takes_over_nodes_with_later_and_with_expired_certificates() {
    let mut group = ManagerGroup::founded(ManagerTuning::default()).await;
    let mut workers = Vec::new();
    for name in ["expired", "renewed"] {
        workers.push(group.worker(name, &[]).await);
    }
    group.run(0, "web", 4).await;
    let before = group.shows_tasks(0, "tasks to run", 4, runs).await;
    let processes_before = processes(&workers).await;
    let bytes = group.backup(0).await;
    let (later, agent) = group.worker("later", &[]).await;
    agent.stop().await.unwrap();
    let mut machines = Vec::new();
    for (machine, agent) in workers {
        agent.stop().await.unwrap();
        machines.push(machine);
    }
    group.hosts[0].drop_manager().await;
    let authority = authority(&group.hosts[0]);
    age_membership(&machines[0], &authority, LONG);
    age_membership(&machines[1], &authority, Duration::ZERO);
    age_membership(&later, &authority, LONG);

    let mut host = ManagerHost::new("m9", ManagerTuning::default());
    let opened = backup::read(&passphrase(PASSPHRASE), bytes).unwrap();
    let restoring = BackupRestore::begin(&host.data_dir()).unwrap();
    restoring.finish(opened, LogEngine::default(), host.restore_target(), SystemTime::now()).unwrap();
    host.start(false).await.unwrap();
    group.hosts = vec![host];
    group.use_administrator_of(0).await;
    let workers = group.returned_agents(machines).await;
    // A new incarnation forgets the attempts until the nodes report them.
    let is_reported = |task: &v1::Task| runs(task) && task.attempt > 0;
    let after = group.shows_tasks(0, "reports of running tasks", 4, is_reported).await;
    assert_eq!(attempts(&after), attempts(&before));
    assert_eq!(processes(&workers).await, processes_before);
    assert_eq!(group.refused_renewal(0, &later).await, "NODE_UNKNOWN", "it joins again");
    for (_, agent) in workers {
        agent.stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn force_new_cluster_continues_alone() {
    let mut group = ManagerGroup::of_three().await;
    let left = group.follower().await;
    group.use_administrator_of(left).await;
    for number in 0..5 {
        group.create(left, &format!("s{number}")).await.unwrap();
    }
    let before = repeated(|| group.info(left)).await.unwrap();
    for host in &mut group.hosts {
        host.drop_manager().await;
    }
    let host = &group.hosts[left];
    let go_on = || {
        force_new_cluster::force_new_cluster(
            &host.data_dir(),
            LogEngine::default(),
            None,
            host.restore_target(),
            SystemTime::now(),
        )
        .unwrap()
    };
    assert!(matches!(go_on(), ForceNewClusterOutcome::Created { others: 2, .. }));
    assert_eq!(go_on(), ForceNewClusterOutcome::Unchanged, "twice does no harm");
    group.hosts[left].start(false).await.unwrap();
    eventually_async(WAIT_DEADLINE, "writes to go on", || async {
        group.create(left, "alone").await.map_err(|status| status.to_string())
    })
    .await;
    let after = group.info(left).await.unwrap();
    assert_eq!((after.managers, after.services), (1, 6));
    assert_eq!(after.cluster_id, before.cluster_id);
    assert!(after.incarnation > before.incarnation);
    // The others return with their old data and reach only a leader that reports them as removed; they may
    // join it.
    for number in (0..3).filter(|number| *number != left) {
        group.hosts[number].start(false).await.unwrap();
        let failed =
            tokio::time::timeout(WAIT_DEADLINE, group.hosts[number].manager_mut().wait_failed()).await;
        assert!(
            matches!(failed, Ok(ManagerFailure::Superseded(incarnation)) if incarnation == after.incarnation),
            "{failed:?}"
        );
        group.hosts[number].stop().await;
        group.join_through(left, number).await;
    }
    group.all_vote().await;
}

/// The wrong manager was forced, and the right one is still the cluster after its request to join was
/// refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn superseded_manager_can_force_a_new_cluster() {
    let mut group = ManagerGroup::of_three().await;
    let wrong = group.follower().await;
    group.use_administrator_of(wrong).await;
    let right = (wrong + 1) % 3;
    for host in &mut group.hosts {
        host.drop_manager().await;
    }
    let go_on = |host: &ManagerHost| {
        force_new_cluster::force_new_cluster(
            &host.data_dir(),
            LogEngine::default(),
            None,
            host.restore_target(),
            SystemTime::now(),
        )
        .unwrap()
    };
    go_on(&group.hosts[wrong]);
    group.hosts[wrong].start(false).await.unwrap();
    eventually_async(WAIT_DEADLINE, "writes to go on", || async {
        group.create(wrong, "wrong").await.map_err(|status| status.to_string())
    })
    .await;
    let token = group.token(NodeRole::Worker).await;
    group.hosts[right].start(false).await.unwrap();
    let failed = tokio::time::timeout(WAIT_DEADLINE, group.hosts[right].manager_mut().wait_failed()).await;
    assert!(matches!(failed, Ok(ManagerFailure::Superseded(_))), "{failed:?}");
    group.hosts[right].stop().await;
    for _ in 0..2 {
        let through = group.hosts[wrong].address();
        let refused = group.hosts[right].join(through, &token).await.unwrap_err();
        assert!(refused.why.contains("warren worker join"), "{refused:?}");
        let again = group.hosts[right].start(false).await.unwrap_err();
        assert!(matches!(again, ManagerStartError::Superseded(_)), "{again}");
    }
    group.hosts[wrong].drop_manager().await;
    assert!(matches!(go_on(&group.hosts[right]), ForceNewClusterOutcome::Created { others: 2, .. }));
    group.hosts[right].start(false).await.unwrap();
    group.use_administrator_of(right).await;
    eventually_async(WAIT_DEADLINE, "writes to go on", || async {
        group.create(right, "right").await.map_err(|status| status.to_string())
    })
    .await;
    assert_eq!(group.services_of(right).await, ["right"]);
    // The third one is of the first incarnation; after joining it drops its old data.
    let third = (wrong + 2) % 3;
    group.hosts[third].start(false).await.unwrap();
    let failed = tokio::time::timeout(WAIT_DEADLINE, group.hosts[third].manager_mut().wait_failed()).await;
    assert!(matches!(failed, Ok(ManagerFailure::Superseded(_))), "{failed:?}");
    group.hosts[third].stop().await;
    group.join_through(right, third).await;
    assert_eq!(group.services_of(third).await, ["right"]);
}

/// The others return together while the forced manager is stopped: they have a majority of the old group and
/// no contact with the new one. Clients that have seen the new incarnation are not served by them, and they
/// stop as soon as they reach it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn superseded_managers_refuse_newer_incarnation_and_stop() {
    let mut group = ManagerGroup::of_three().await;
    let node = group.node("n1").await;
    let left = group.follower().await;
    group.use_administrator_of(left).await;
    let others: Vec<usize> = (0..3).filter(|number| *number != left).collect();
    let mut worker = group.session(left, &node, None).await;
    worker.sync().await;
    for host in &mut group.hosts {
        host.drop_manager().await;
    }
    let host = &group.hosts[left];
    force_new_cluster::force_new_cluster(
        &host.data_dir(),
        LogEngine::default(),
        None,
        host.restore_target(),
        SystemTime::now(),
    )
    .unwrap();
    group.hosts[left].start(false).await.unwrap();
    eventually_async(WAIT_DEADLINE, "writes to go on", || async {
        group.create(left, "new").await.map_err(|status| status.to_string())
    })
    .await;
    let incarnation = group.info(left).await.unwrap().incarnation;
    let mut worker = group.session(left, &node, worker.version).await;
    worker.sync().await;
    let seen = worker.version;
    assert_eq!(seen.unwrap().incarnation, incarnation, "workers follow");
    group.hosts[left].drop_manager().await;

    for number in &others {
        group.hosts[*number].start(false).await.unwrap();
    }
    // Nothing connects the two halves, so a client that has not seen the new incarnation is served.
    eventually_async(WAIT_DEADLINE, "the old ones to lead", || async {
        group.create(others[0], "old").await.map_err(|status| status.to_string())
    })
    .await;
    for number in others.clone() {
        let asked = |incarnation: u64| {
            let id = new_id().to_string();
            let spec = Some((&spec(&format!("by{number}"), 0)).into());
            let mut create = tonic::Request::new(v1::CreateServiceRequest { id, spec, ..Default::default() });
            let mut list =
                super::group::stale(v1::ListServicesRequest { page_size: 1_000, ..Default::default() });
            create.metadata_mut().insert(INCARNATION, incarnation.into());
            list.metadata_mut().insert(INCARNATION, incarnation.into());
            (create, list)
        };
        let mut services = group.services(number).await;
        let (create, list) = asked(incarnation);
        for refused in [services.create(create).await.unwrap_err(), services.list(list).await.unwrap_err()] {
            let problem = Problem::from(&refused);
            assert_eq!(
                (problem.code, problem.reason.as_str()),
                (Code::Unavailable, OTHER_INCARNATION),
                "{problem}"
            );
            assert!(problem.message.contains(&format!("has seen incarnation {incarnation}")), "{problem}");
        }
        let channel = group.hosts[number].channel(&group.roots, Some(&node)).await;
        let mut foreign = ScriptedWorker::connect(channel, seen).await;
        let refused = foreign.try_receive().await.unwrap_err();
        assert_eq!(Problem::from(&refused).reason, OTHER_INCARNATION, "{refused}");
    }
    let reason = format!("superseded: incarnation {incarnation} of the cluster exists");
    group
        .wait_for_managers("the old managers to report it", |listed| {
            listed.values().any(|it| it.reason.contains(&reason))
        })
        .await;

    group.hosts[left].start(false).await.unwrap();
    for number in others {
        let failed =
            tokio::time::timeout(WAIT_DEADLINE, group.hosts[number].manager_mut().wait_failed()).await;
        assert!(
            matches!(failed, Ok(ManagerFailure::Superseded(later)) if later == incarnation),
            "{failed:?}"
        );
        group.hosts[number].stop().await;
        let again = group.hosts[number].start(false).await.unwrap_err();
        assert!(matches!(again, ManagerStartError::Superseded(later) if later == incarnation), "{again}");
        assert!(again.to_string().contains("`warren manager join`"), "{again}");
    }
    assert_eq!(group.services_of(left).await, ["new"]);
    for number in (0..3).filter(|number| *number != left) {
        group.join_through(left, number).await;
    }
    group.all_vote().await;
}
