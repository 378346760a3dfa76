//! Volume operations for a manager: list, delete.

use std::collections::BTreeSet;

use warren_proto::v1;
use warren_proto::v1::stream_frame::Frame;
use warren_types::VolumeName;

use super::{StreamError, StreamSender};
use crate::handlers::volumes::TaskVolumes;

/// Sends each volume with its disk usage as soon as it is measured.
pub(super) async fn list(
    volumes: &TaskVolumes,
    request: &v1::ListVolumes,
    out: &StreamSender,
) -> Result<Result<(), String>, StreamError> {
    let only: BTreeSet<VolumeName> = match request.names.iter().map(|name| name.parse()).collect() {
        Ok(only) => only,
        Err(error) => return Ok(Err(refused(error))),
    };
    let found = match volumes.list(&only).await {
        Ok(found) => found,
        Err(error) => return Ok(Err(error.to_string())),
    };
    for volume in found {
        let size = match volumes.usage(&volume).await {
            Ok(Some(size)) => Some(size.0),
            // It was deleted meanwhile.
            Ok(None) => continue,
            Err(error) => {
                tracing::warn!(%volume, %error, "cannot measure the disk usage of a volume");
                None
            }
        };
        let volume = v1::LocalVolume { name: volume.to_string(), size_bytes: size };
        out.send(Frame::Volumes(v1::VolumeList { volumes: vec![volume] })).await?;
    }
    Ok(Ok(()))
}

/// Deletes the data of a volume; `Err` is a human readable reason.
pub(super) async fn purge(volumes: &TaskVolumes, request: &v1::PurgeVolume) -> Result<(), String> {
    let volume: VolumeName = request.name.parse().map_err(refused)?;
    volumes.purge(&volume).await.map_err(|error| error.to_string())
}

fn refused(error: impl std::fmt::Display) -> String {
    format!("invalid volume name for this version of the node: {error}")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::{mpsc, watch};
    use warren_runtime::fake::FakeRuntime;
    use warren_task::DesiredState;
    use warren_types::TaskAssignment;
    use warren_volume::{SubpathMounts, VolumeBackend, fake};

    use super::*;
    use crate::fixtures::task;

    fn node() -> (fake::FakeVolumeDriver, watch::Sender<DesiredState>, TaskVolumes) {
        let (driver, desired_state) =
            (fake::FakeVolumeDriver::new(), DesiredState { is_confirmed: true, ..DesiredState::default() });
        let (desired_state, expected) = watch::channel(desired_state);
        let volumes = TaskVolumes::new(
            Arc::new(driver.clone()),
            SubpathMounts::new("/none"),
            Arc::new(FakeRuntime::new()),
            expected,
        );
        (driver, desired_state, volumes)
    }

    async fn listed(volumes: &TaskVolumes, names: &[&str]) -> Result<Vec<(String, u64)>, String> {
        let (frames, mut output) = mpsc::channel(16);
        let request = v1::ListVolumes { names: names.iter().map(|name| (*name).to_owned()).collect() };
        list(volumes, &request, &StreamSender { frames }).await.unwrap()?;
        let mut found = Vec::new();
        while let Some(frame) = output.recv().await {
            let Some(Frame::Volumes(list)) = frame.frame else { panic!("{frame:?}") };
            found.extend(list.volumes.into_iter().map(|volume| (volume.name, volume.size_bytes.unwrap())));
        }
        Ok(found)
    }

    #[tokio::test]
    async fn volumes_are_listed_with_usage() {
        let (driver, _wishes, volumes) = node();
        assert_eq!(listed(&volumes, &[]).await.unwrap(), []);
        for name in ["a", "b"] {
            driver.ensure(&name.parse().unwrap(), &Default::default(), None).await.unwrap();
        }
        std::fs::write(driver.path(&"b".parse().unwrap()).join("file"), vec![1; 1 << 20]).unwrap();
        let found = listed(&volumes, &[]).await.unwrap();
        assert!(found[0].0 == "a" && found[1].0 == "b" && found[1].1 > 1 << 20, "{found:?}");
        let only = listed(&volumes, &["a", "gone"]).await.unwrap();
        assert_eq!(only, found[..1]);
        assert!(listed(&volumes, &["../etc"]).await.unwrap_err().contains("../etc"));
    }

    #[tokio::test]
    async fn volume_is_purged_unless_in_use() {
        let (driver, desired_state, volumes) = node();
        let data: VolumeName = "data".parse().unwrap();
        driver.ensure(&data, &Default::default(), None).await.unwrap();
        let purge = async |name: &str| purge(&volumes, &v1::PurgeVolume { name: name.into() }).await;
        let used = warren_types::VolumeAssignment { name: data.clone(), options: Default::default() };
        let user = TaskAssignment { volumes: vec![used], ..task(1) };
        desired_state.send_modify(|desired_state| drop(desired_state.tasks.insert(user.id, Arc::new(user))));
        let refused = purge("data").await.unwrap_err();
        assert!(refused.contains("volume data is in use on this node by"), "{refused}");
        desired_state.send_modify(|desired_state| desired_state.tasks.clear());
        for _twice in 0..2 {
            assert_eq!(purge("data").await, Ok(()));
            assert!(!driver.path(&data).exists());
        }
        assert!(purge("a/b").await.unwrap_err().contains("a/b"));
    }
}
