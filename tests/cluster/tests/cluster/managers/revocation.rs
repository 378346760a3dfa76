//! What is revoked is refused in the handshake, by every manager, also after it has started again.

use tokio::task::JoinHandle;
use tokio::time::timeout;
use tonic::Status;
use warren_client::JoinToken;
use warren_manager::ManagerTuning;
use warren_proto::v1;
use warren_proto::v1::cluster_client::ClusterClient;
use warren_proto::v1::users_client::UsersClient;
use warren_security::{CertificateRequest, Credentials, PrivateKey};
use warren_testkit::wait::eventually_async;
use warren_types::Id;

use super::group::{ManagerGroup, repeated, repeated_removal};
use super::rehearsal::Rehearsal;
use crate::dial::{accepts, assert_access_ended, until_accepted};
use crate::fixture::WAIT_DEADLINE;

impl ManagerGroup {
    async fn users(&self) -> UsersClient<tonic::transport::Channel> {
        UsersClient::new(self.channel(0).await)
    }

    /// A new user, logged in.
    async fn viewer(&self, name: &str) -> Credentials {
        let token = JoinToken::generate(self.roots.digests()[0]).unwrap();
        let request = v1::CreateUserRequest {
            id: Id(rand::random()).to_string(),
            name: name.to_owned(),
            role: v1::UserRole::Viewer.into(),
            login_hash: token.hash().0.to_vec().into(),
            login_ttl_ms: 60_000,
            ttl_ms: 0,
        };
        let users = self.users().await;
        repeated(|| async { users.clone().create(request.clone()).await }).await.unwrap();
        let key = PrivateKey::generate().unwrap();
        let certificate_request = CertificateRequest::create(&key).unwrap();
        let request = v1::LoginRequest { token: token.reveal().to_string(), certificate_request };
        let anonymous = UsersClient::new(self.hosts[0].channel(&self.roots, None).await);
        let answer = repeated(|| async { anonymous.clone().login(request.clone()).await }).await;
        Credentials::new(answer.unwrap().into_inner().certificate, key).unwrap()
    }

    async fn revoke(&self, credentials: &Credentials) {
        let request = v1::RevokeKeyRequest { key: credentials.key().public_hash().unwrap().to_string() };
        let users = self.users().await;
        repeated(|| async { users.clone().revoke_key(request.clone()).await }).await.unwrap();
    }

    async fn remove_user(&self, name: &str) {
        let (users, request) = (self.users().await, v1::Reference { reference: name.to_owned() });
        repeated_removal(|| async { users.clone().remove(request.clone()).await }).await.unwrap();
    }

    /// Removes a manager that runs, and waits until it has stopped.
    async fn remove_running(&mut self, number: usize) {
        let name = self.hosts[number].name.clone();
        self.remove(0, &name, true).await.unwrap();
        let failed = timeout(WAIT_DEADLINE, self.hosts[number].manager_mut().wait_failed()).await;
        failed.expect("it learns that it was removed, although its certificate is refused");
        self.hosts[number].stop().await;
        self.wait_for_managers("it to be gone", |listed| !listed.contains_key(&name)).await;
    }

    /// Waits until these managers refuse and accept exactly these.
    async fn handshakes(&self, numbers: &[usize], refused: &[Credentials], accepted: &[Credentials]) {
        for number in numbers {
            let address = self.hosts[*number].address();
            for (credentials, expected) in
                refused.iter().map(|it| (it, false)).chain(accepted.iter().map(|it| (it, true)))
            {
                until_accepted(address, &self.roots, credentials, expected).await;
            }
        }
    }
}

/// Watches everything as this user, and resolves when that ends.
async fn watch_to_end(group: &ManagerGroup, number: usize, user: &Credentials) -> JoinHandle<Status> {
    let channel = group.hosts[number].channel(&group.roots, Some(user)).await;
    let watch = ClusterClient::new(channel).watch(v1::WatchRequest::default()).await;
    let mut watch = watch.unwrap().into_inner();
    tokio::spawn(async move {
        loop {
            match watch.message().await {
                Ok(Some(_)) => {}
                Ok(None) => return Status::ok("the watch has ended"),
                Err(status) => return status,
            }
        }
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn removed_and_revoked_certificates_fail_in_the_handshake() {
    let mut group = ManagerGroup::of_three().await;
    let leader = group.leader().await;
    // The tests call as the administrator of the first one.
    let gone = (1..3).find(|number| *number != leader).unwrap();
    let stays = 3 - gone;
    // What a thief copied from the disk of the manager that is removed.
    let stolen = [group.hosts[gone].credentials(), group.hosts[gone].manager().admin()];
    let administrator = group.hosts[stays].manager().admin();
    let (removed_node, node) = (group.node("removed").await, group.node("stays").await);
    let users = [group.viewer("ann").await, group.viewer("bob").await, group.viewer("eve").await];
    let [ann, bob, eve] = users;
    // Managers list the keys of their administrators some time after they joined.
    eventually_async(WAIT_DEADLINE, "the keys of all administrators", || async {
        let listed = group.users().await.list_keys(v1::ListRequest::default()).await;
        let keys = listed.map_err(|status| status.to_string())?.into_inner().keys;
        let count = keys.iter().filter(|key| !key.manager.is_empty()).count();
        if count == 3 { Ok(()) } else { Err(format!("{keys:?}")) }
    })
    .await;
    let (own, peer) = (group.admin.clone(), group.hosts[stays].credentials());
    let refused = [&stolen[..], &[administrator.clone(), removed_node, ann.clone(), bob]].concat();
    let accepted = [own, peer, node.clone(), eve];
    group.handshakes(&[0, stays], &[], &[&refused[..], &accepted[..]].concat()).await;

    group.remove_node("removed").await;
    group.remove_user("bob").await;
    group.revoke(&ann).await;
    group.revoke(&administrator).await;
    group.remove_running(gone).await;
    group.handshakes(&[0, stays], &refused, &accepted).await;

    // The administrator whose key was revoked has another one, which is listed.
    eventually_async(WAIT_DEADLINE, "another key of the administrator", || async {
        let other = group.hosts[stays].manager().admin();
        if other.key().public_hash().unwrap() == administrator.key().public_hash().unwrap() {
            return Err("the same".to_owned());
        }
        let channel = group.hosts[0].channel(&group.roots, Some(&other)).await;
        let listed = UsersClient::new(channel).list_keys(v1::ListRequest::default()).await;
        listed.map(drop).map_err(|status| status.to_string())
    })
    .await;

    // The workers refuse the manager that left, and what was revoked stays so after a restart.
    let worker = group.session(stays, &node, None).await;
    let settings = worker.welcome.settings.clone().expect("the welcome has settings");
    assert_eq!(settings.revoked_managers, [stolen[0].identity().id()]);
    drop(worker);
    group.hosts[stays].stop().await;
    group.hosts[stays].start(false).await.unwrap();
    group.handshakes(&[0, stays], &refused, &accepted).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn keys_and_machines_are_revoked_under_load_and_the_others_go_on() {
    let mut world = Rehearsal::start().await;
    let leader = world.group.leader().await;
    // The clients call as the administrator of the first one.
    let gone = (1..3).find(|number| *number != leader).unwrap();
    let stays = 3 - gone;
    let [ann, eve] = [world.group.viewer("ann").await, world.group.viewer("eve").await];
    let ann_watches = watch_to_end(&world.group, stays, &ann).await;
    let eve_watches = watch_to_end(&world.group, stays, &eve).await;
    // What a thief copied.
    let stolen = [world.group.hosts[gone].credentials(), world.group.hosts[gone].manager().admin()];

    world.group.revoke(&ann).await;
    let ended = timeout(WAIT_DEADLINE, ann_watches).await.expect("the watch ends").unwrap();
    assert_access_ended(&ended);
    let worker = world.remove_worker().await;
    world.group.remove_running(gone).await;
    let refused = [&stolen[..], &[ann, worker, world.removed.clone()]].concat();
    let accepted = [world.group.admin.clone(), world.group.hosts[stays].credentials(), eve];
    world.group.handshakes(&[0, stays], &refused, &accepted).await;
    world.finish().await;

    let agent = world.bring_back().await;
    let refused = world.group.hosts[gone].start(false).await.unwrap_err().to_string();
    assert!(refused.contains("removed"), "{refused}");
    assert!(!eve_watches.is_finished());
    world.stop([agent]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn first_handshake_after_a_start_refuses_what_is_revoked() {
    let mut group = ManagerGroup::founded(ManagerTuning::default()).await;
    let (ann, eve) = (group.viewer("ann").await, group.viewer("eve").await);
    group.revoke(&ann).await;
    group.hosts[0].stop().await;
    group.hosts[0].start(false).await.unwrap();
    for (user, expected) in [(&ann, false), (&eve, true)] {
        let found = accepts(group.hosts[0].address(), &group.roots, user).await;
        assert_eq!(found.unwrap(), expected, "{}", user.identity());
    }
}
