//! Managers lock the keys on their disks: a stopped one gives nothing away, and waits for the unlock key.

use std::path::Path;

use tonic::Status;
use warren_client::{Client, ClientTarget};
use warren_proto::status::MANAGER_LOCKED;
use warren_proto::v1;
use warren_security::UnlockKey;
use warren_testkit::wait::eventually_async;

use super::group::{ManagerGroup, repeated};
use super::host::ManagerHost;
use crate::fixture::WAIT_DEADLINE;

impl ManagerGroup {
    pub async fn set_autolock(&self, is_on: bool) {
        let request = v1::UpdateClusterRequest { autolock: Some(is_on), ..Default::default() };
        let cluster = self.cluster().await;
        let updated = repeated(|| async { cluster.clone().update(request.clone()).await }).await;
        assert_eq!(updated.unwrap().into_inner().autolock, Some(is_on));
    }

    /// Waits until that many managers have applied the last change.
    pub async fn all_locked(&self, managers: usize) {
        self.wait_for_managers("managers to lock their keys", |listed| {
            listed.values().filter(|manager| manager.autolock == "on").count() == managers
        })
        .await;
    }

    pub async fn unlock_key(&self) -> UnlockKey {
        let cluster = self.cluster().await;
        let read = || async { cluster.clone().get_unlock_key(v1::GetUnlockKeyRequest {}).await };
        UnlockKey::parse(&repeated(read).await.unwrap().into_inner().key).unwrap()
    }

    /// Replaces the unlock key that the request names.
    async fn rotate_unlock_key(&self, request: &v1::RotateUnlockKeyRequest) -> Result<v1::UnlockKey, Status> {
        let cluster = self.cluster().await;
        let rotate = || async { cluster.clone().rotate_unlock_key(request.clone()).await };
        Ok(repeated(rotate).await?.into_inner())
    }
}

/// The keys in the files of an unlocked manager, as they stand there.
fn plain_keys(manager: &Path) -> Vec<String> {
    let read = |file: &str| std::fs::read_to_string(manager.join(file)).unwrap();
    let lines =
        ["member.key", "secret-objects.key"].map(|file| read(file).split(' ').nth(2).unwrap().to_owned());
    let pem = ["ca.pem", "manager.pem", "admin.pem"].map(|file| {
        let text = read(file);
        let (_, key) = text.split_once("-----BEGIN PRIVATE KEY-----\n").unwrap();
        key.lines().next().unwrap().to_owned()
    });
    lines.into_iter().chain(pem).collect()
}

/// The files below a directory that contain one of these.
pub fn files_with(directory: &Path, keys: &[String]) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files_with(&path, keys));
            continue;
        }
        // One that is replaced meanwhile has the same content under its own name.
        let content = std::fs::read(&path).unwrap_or_default();
        let has = |key: &String| content.windows(key.len()).any(|window| window == key.as_bytes());
        if keys.iter().any(has) {
            found.push(path.display().to_string());
        }
    }
    found
}

/// Gives the host what its process gets from `warren manager unlock`.
async fn unlock(host: &mut ManagerHost, key: &UnlockKey) {
    let locked = tokio::spawn(host.locked().wait_unlocked());
    let client = Client::connect(&ClientTarget::Unix { socket: host.socket() }).await.unwrap();
    let status = client.manager_lock().status().await.unwrap();
    assert_eq!(status.unlock_key_id, key.id().to_string());
    let other = client.cluster().info().await.unwrap_err();
    assert!(
        matches!(&other, warren_client::Error::Refused { problem } if problem.reason == MANAGER_LOCKED),
        "{other}"
    );
    let wrong = client.manager_lock().unlock(&UnlockKey::generate()).await.unwrap_err();
    assert!(wrong.to_string().contains(&key.id().to_string()), "{wrong}");
    client.manager_lock().unlock(key).await.unwrap();
    host.unlock_key = Some(locked.await.unwrap().unwrap());
}

/// Starts a host whose keys are locked.
pub async fn start_locked(host: &mut ManagerHost, key: &UnlockKey) {
    host.unlock_key = None;
    let refused = host.start(false).await.unwrap_err().to_string();
    assert!(refused.contains("is locked: run `warren manager unlock`"), "{refused}");
    unlock(host, key).await;
    host.start(false).await.unwrap();
}

async fn knows_service(host: &ManagerHost, name: &str) {
    eventually_async(WAIT_DEADLINE, "a manager to catch up", || async {
        let published = host.manager().store().read();
        published.state.find_service(name).map(drop).map_err(|refusal| refusal.to_string())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn locked_manager_waits_for_its_key_and_catches_up() {
    let mut group = ManagerGroup::of_three().await;
    let manager = group.hosts[2].data_dir().join("manager");
    let keys = plain_keys(&manager);
    assert_eq!(files_with(&manager, &keys).len(), 5);
    group.set_autolock(true).await;
    group.set_autolock(true).await;
    group.all_locked(3).await;
    let first = group.unlock_key().await;
    assert_eq!(files_with(&manager, &keys), [""; 0], "while it runs");
    group.hosts[2].stop().await;
    group.create(0, "late").await.unwrap();
    assert_eq!(files_with(&manager, &keys), [""; 0]);
    start_locked(&mut group.hosts[2], &first).await;
    knows_service(&group.hosts[2], "late").await;
    assert_eq!(files_with(&manager, &keys), [""; 0], "also after it was unlocked");

    // A manager that was away while the key was replaced needs the earlier one, and then has the new one.
    group.hosts[2].stop().await;
    let request = v1::RotateUnlockKeyRequest { id: first.id().to_string() };
    for _ in 0..2 {
        let rotated = group.rotate_unlock_key(&request).await.unwrap();
        assert_ne!(rotated.id, first.id().to_string());
        assert!(rotated.pending_managers.contains(&"m3".to_owned()), "{rotated:?}");
    }
    let second = group.unlock_key().await;
    assert_ne!(second.id(), first.id());
    start_locked(&mut group.hosts[2], &first).await;
    group.all_locked(3).await;
    group.hosts[2].stop().await;
    start_locked(&mut group.hosts[2], &second).await;

    // A manager that joins locks its keys by itself.
    group.add("m4").await;
    group.all_locked(4).await;

    group.set_autolock(false).await;
    group
        .wait_for_managers("no manager to lock its keys", |listed| {
            listed.values().all(|manager| manager.autolock == "off")
        })
        .await;
    assert_eq!(files_with(&manager, &keys).len(), 5, "the keys are the same ones");
    group.hosts[2].stop().await;
    group.hosts[2].unlock_key = None;
    group.hosts[2].start(false).await.unwrap();
    knows_service(&group.hosts[2], "late").await;
    let refused = group.rotate_unlock_key(&request).await.unwrap_err();
    assert!(refused.message().contains("autolock is off"), "{refused:?}");
}
