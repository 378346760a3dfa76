//! Volumes that a manager has this node list or delete.

use std::collections::BTreeSet;

use warren_proto::v1;
use warren_proto::v1::stream_frame::Frame;
use warren_types::VolumeName;

use super::{Outbound, StreamError};
use crate::handlers::volumes::Volumes;

/// Tells which volumes there are and what they take, each as soon as it was measured.
pub(super) async fn list(
    volumes: &Volumes,
    wish: &v1::ListVolumes,
    out: &Outbound,
) -> Result<Result<(), String>, StreamError> {
    let only: BTreeSet<VolumeName> = match wish.names.iter().map(|name| name.parse()).collect() {
        Ok(only) => only,
        Err(error) => return Ok(Err(refused(error))),
    };
    let found = match volumes.list(&only).await {
        Ok(found) => found,
        Err(error) => return Ok(Err(error.to_string())),
    };
    for volume in found {
        match volumes.usage(&volume).await {
            Ok(Some(size)) => {
                let volume = v1::LocalVolume { name: volume.to_string(), size_bytes: size.0 };
                out.send(Frame::Volumes(v1::VolumeList { volumes: vec![volume] })).await?;
            }
            // It was deleted meanwhile.
            Ok(None) => {}
            // The others can be told.
            Err(error) => tracing::warn!(%volume, %error, "cannot tell what a volume takes"),
        }
    }
    Ok(Ok(()))
}

/// Deletes the data of a volume; `Err` says why not.
pub(super) async fn purge(volumes: &Volumes, wish: &v1::PurgeVolume) -> Result<(), String> {
    let volume: VolumeName = wish.name.parse().map_err(refused)?;
    volumes.purge(&volume).await.map_err(|error| error.to_string())
}

fn refused(error: impl std::fmt::Display) -> String {
    format!("this version of the node takes other names of volumes: {error}")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::{mpsc, watch};
    use warren_runtime::fake::Fake;
    use warren_task::Wishes;
    use warren_types::TaskAssignment;
    use warren_volume::{Driver, Pins, fake};

    use super::*;
    use crate::samples::task;

    fn node() -> (fake::Fake, watch::Sender<Wishes>, Volumes) {
        let (driver, wishes) = (fake::Fake::new(), Wishes { confirmed: true, ..Wishes::default() });
        let (wishes, wanted) = watch::channel(wishes);
        let volumes =
            Volumes::new(Arc::new(driver.clone()), Pins::new("/none"), Arc::new(Fake::new()), wanted);
        (driver, wishes, volumes)
    }

    async fn listed(volumes: &Volumes, names: &[&str]) -> Result<Vec<(String, u64)>, String> {
        let (frames, mut said) = mpsc::channel(16);
        let wish = v1::ListVolumes { names: names.iter().map(|name| (*name).to_owned()).collect() };
        list(volumes, &wish, &Outbound { frames }).await.unwrap()?;
        let mut found = Vec::new();
        while let Some(frame) = said.recv().await {
            let Some(Frame::Volumes(list)) = frame.frame else { panic!("{frame:?}") };
            found.extend(list.volumes.into_iter().map(|volume| (volume.name, volume.size_bytes)));
        }
        Ok(found)
    }

    #[tokio::test]
    async fn volumes_are_listed_with_what_they_take() {
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
    async fn a_volume_is_purged_unless_it_is_used() {
        let (driver, wishes, volumes) = node();
        let data: VolumeName = "data".parse().unwrap();
        driver.ensure(&data, &Default::default(), None).await.unwrap();
        let purge = async |name: &str| purge(&volumes, &v1::PurgeVolume { name: name.into() }).await;
        let used = warren_types::VolumeAssignment { name: data.clone(), options: Default::default() };
        let user = TaskAssignment { volumes: vec![used], ..task(1) };
        wishes.send_modify(|wishes| drop(wishes.tasks.insert(user.id, Arc::new(user))));
        let refused = purge("data").await.unwrap_err();
        assert!(refused.contains("volume data is still used on this node by"), "{refused}");
        wishes.send_modify(|wishes| wishes.tasks.clear());
        for _twice in 0..2 {
            assert_eq!(purge("data").await, Ok(()));
            assert!(!driver.path(&data).exists());
        }
        assert!(purge("a/b").await.unwrap_err().contains("a/b"));
    }
}
