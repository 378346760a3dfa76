//! The keys that encrypt what managers store are replaced while clients write, and while a manager is down and locked.

use std::path::Path;

use warren_proto::v1;
use warren_proto::v1::secret_objects_client::SecretObjectsClient;
use warren_testkit::wait::eventually_async;
use warren_types::{Id, SecretObjectId};

use super::autolock::{files_with, start_locked};
use super::group::{ManagerGroup, repeated};
use super::host::ManagerHost;
use super::rehearsal::Rehearsal;
use crate::fixture::WAIT_DEADLINE;

impl ManagerGroup {
    async fn rotate_keys(&self, number: u64) -> v1::KeyStatus {
        let cluster = self.cluster().await;
        let rotate = || async { cluster.clone().rotate_keys(v1::RotateKeysRequest { number }).await };
        repeated(rotate).await.unwrap().into_inner()
    }

    async fn wait_for_keys(&self, what: &str, expected: impl Fn(&v1::KeyStatus) -> bool) -> v1::KeyStatus {
        eventually_async(WAIT_DEADLINE, what, || async {
            let status = self.cluster().await.get_keys(v1::GetKeysRequest {}).await;
            let status = status.map_err(|status| status.to_string())?.into_inner();
            if expected(&status) { Ok(status) } else { Err(format!("{status:#?}")) }
        })
        .await
    }

    async fn create_config(&self, number: u128, name: &str, data: &'static str) {
        let request = v1::CreateSecretObjectRequest {
            id: SecretObjectId(Id(number)).to_string(),
            kind: v1::SecretObjectKind::Config.into(),
            name: name.into(),
            data: data.as_bytes().into(),
            ..Default::default()
        };
        let objects = SecretObjectsClient::new(self.any_channel().await);
        repeated(|| async { objects.clone().create(request.clone()).await }).await.unwrap();
    }

    /// Waits until each manager gives these configs back.
    async fn all_read(&self, configs: &[(&str, &str)]) {
        for number in 0..self.hosts.len() {
            for (name, data) in configs {
                eventually_async(WAIT_DEADLINE, "a config", || async {
                    let request = v1::ReadSecretObjectRequest {
                        kind: v1::SecretObjectKind::Config.into(),
                        reference: (*name).to_owned(),
                        version_number: None,
                    };
                    let read = SecretObjectsClient::new(self.channel(number).await).read(request).await;
                    let read = read.map_err(|status| status.to_string())?.into_inner().data;
                    if read == data.as_bytes() { Ok(()) } else { Err(format!("{read:?}")) }
                })
                .await;
            }
        }
    }
}

/// The member key and the secret object key of a manager that is not locked, as they stand in their files.
fn keys_of(host: &ManagerHost) -> [String; 2] {
    ["member.key", "secret-objects.key"].map(|file| {
        let text = std::fs::read_to_string(host.data_dir().join("manager").join(file)).unwrap();
        text.split(' ').nth(2).unwrap().to_owned()
    })
}

/// Waits until the managers have forgotten the earlier secret object key.
async fn all_have_one_key(hosts: &[ManagerHost]) {
    eventually_async(WAIT_DEADLINE, "one secret object key in each file", || async {
        let path = |host: &ManagerHost| host.data_dir().join("manager").join("secret-objects.key");
        let lines = |host| std::fs::read_to_string(path(host)).unwrap().lines().count();
        let found: Vec<usize> = hosts.iter().map(lines).collect();
        if found.iter().all(|lines| *lines == 1) { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .await;
}

fn keyring_size(manager: &Path) -> u64 {
    std::fs::metadata(manager.join("keyring")).unwrap().len()
}

fn is_complete(status: &v1::KeyStatus) -> bool {
    status.phase() == v1::KeyPhase::Complete
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn keys_are_replaced_on_all_managers_and_nothing_is_lost() {
    let mut group = ManagerGroup::of_three().await;
    group.create_config(1, "settings", "x = 1").await;
    let earlier: Vec<[String; 2]> = group.hosts.iter().map(keys_of).collect();
    group.set_autolock(true).await;
    group.all_locked(3).await;
    let unlock_key = group.unlock_key().await;
    group.hosts[2].stop().await;

    let begun = group.rotate_keys(0).await;
    assert_eq!((begun.phase(), begun.managers), (v1::KeyPhase::Disks, 3));
    assert_eq!(group.rotate_keys(0).await.number, begun.number, "a repeated request begins nothing");
    let waiting = group.wait_for_keys("two managers", |status| status.missing_managers == ["m3"]).await;
    assert_eq!(waiting.phase(), v1::KeyPhase::Disks, "it waits for the third one");
    group.create_config(2, "meanwhile", "x = 2").await;
    start_locked(&mut group.hosts[2], &unlock_key).await;
    let first = group.wait_for_keys("new keys", is_complete).await;
    assert_eq!((first.number, first.remaining_objects), (begun.number, 0));
    assert_ne!(first.secret_object_key, begun.secret_object_key);
    // Both configs and the unlock key.
    assert_eq!(first.objects, 3);
    let configs = [("settings", "x = 1"), ("meanwhile", "x = 2")];
    group.all_read(&configs).await;
    group.create_config(3, "later", "x = 3").await;

    group.set_autolock(false).await;
    group
        .wait_for_managers("no manager to lock its keys", |listed| {
            listed.values().all(|manager| manager.autolock == "off")
        })
        .await;
    all_have_one_key(&group.hosts).await;
    group.hosts.iter_mut().for_each(|host| host.unlock_key = None);
    let newer: Vec<[String; 2]> = group.hosts.iter().map(keys_of).collect();
    assert!(newer.iter().all(|[_, secret_objects]| *secret_objects == newer[0][1]), "all have the same one");
    for (host, earlier) in group.hosts.iter().zip(&earlier) {
        let manager = host.data_dir().join("manager");
        assert_eq!(files_with(&manager, earlier), [""; 0], "an earlier key is on {}", host.name);
        // 60 bytes and one data key of 64.
        assert_eq!(keyring_size(&manager), 124, "the keyring of {}", host.name);
    }

    // The log and the snapshots open with what is left.
    for number in 0..3 {
        group.hosts[number].stop().await;
        group.hosts[number].start(false).await.unwrap();
    }
    group.all_read(&configs).await;
    let again = group.rotate_keys(first.number).await;
    assert!(again.number > first.number);
    let second = group.wait_for_keys("newer keys", is_complete).await;
    assert_eq!((second.number, second.objects), (again.number, 3));
    assert_ne!(second.secret_object_key, first.secret_object_key);
    group.all_read(&[configs[0], configs[1], ("later", "x = 3")]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn keys_are_replaced_under_load_while_managers_are_locked() {
    let mut world = Rehearsal::start().await;
    world.group.create_config(1, "settings", "x = 1").await;
    world.group.set_autolock(true).await;
    world.group.all_locked(3).await;
    let unlock_key = world.group.unlock_key().await;
    let leader = world.group.leader().await;
    let away = (leader + 1) % 3;
    let [lost_name, away_name] = [leader, away].map(|number| world.group.hosts[number].name.clone());
    world.group.hosts[away].stop().await;
    let begun = world.group.rotate_keys(0).await;
    world.group.wait_for_keys("two managers", |status| status.missing_managers == [&*away_name]).await;

    // The leader is lost before the manager that was away is unlocked: without it, the third one cannot go on.
    world.group.hosts[leader].drop_manager().await;
    start_locked(&mut world.group.hosts[away], &unlock_key).await;
    world.more_writes().await;
    let waiting = |status: &v1::KeyStatus| status.missing_managers == [&*lost_name];
    let waiting = world.group.wait_for_keys("all but the lost manager", waiting).await;
    assert_eq!(waiting.phase(), v1::KeyPhase::Managers);
    world.group.create_config(2, "meanwhile", "x = 2").await;
    start_locked(&mut world.group.hosts[leader], &unlock_key).await;
    let done = world.group.wait_for_keys("new keys", is_complete).await;
    // Both configs and the unlock key.
    assert_eq!((done.number, done.objects, done.remaining_objects), (begun.number, 3, 0));
    assert_ne!(done.secret_object_key, begun.secret_object_key);
    world.finish().await;
    world.group.all_locked(3).await;
    world.group.all_read(&[("settings", "x = 1"), ("meanwhile", "x = 2")]).await;
    let agent = world.bring_back().await;
    world.stop([agent]).await;
}
