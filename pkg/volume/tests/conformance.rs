//! One suite for every driver. Needs root.

#![allow(clippy::unwrap_used)]

use std::fs;

use warren_volume::conformance::suite;
use warren_volume::fake::FakeVolumeDriver;
use warren_volume::{LocalVolumeDriver, VolumeBackend};

#[tokio::test]
async fn local_driver_passes_conformance() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("volumes");
    suite(&LocalVolumeDriver::new(&root)).await;
    assert_eq!(fs::read_dir(&root).unwrap().count(), 0, "nothing is left beside the volumes either");
}

#[tokio::test]
async fn fake_driver_passes_conformance() {
    suite(&FakeVolumeDriver::new()).await;
}

#[tokio::test]
async fn fake_fails_when_scripted() {
    let (fake, volume) = (FakeVolumeDriver::new(), "data".parse().unwrap());
    let full = || warren_volume::Error::NoSpace {
        volume: "data".parse().unwrap(),
        action: "make",
        path: "/v".into(),
    };
    fake.fail_next(full());
    assert!(fake.ensure(&volume, &Default::default(), None).await.unwrap_err().is_transient());
    assert!(!fake.path(&volume).exists());
    fake.clone().ensure(&volume, &Default::default(), None).await.unwrap();
    assert_eq!(fake.list().await.unwrap(), [volume]);
}
