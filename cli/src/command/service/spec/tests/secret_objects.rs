//! Secrets, configs and volumes in an update.

use super::*;

#[test]
fn mounts_are_removed_by_name_or_target() {
    let before =
        ["--secret=db", "--secret=db:/db", "--config=a:/etc/a", "--volume=data:/data", "--bind=/b:/b"];
    let left = |update: &[&str]| {
        let task = changed(&created(&before).unwrap(), update).unwrap().task;
        let secrets = task.secrets.iter().map(SecretObjectMount::secret_target);
        let configs = task.configs.iter().map(SecretObjectMount::config_target);
        let mounts = task.mounts.iter().map(|mount| mount.target.clone());
        secrets.chain(configs).chain(mounts).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(left(&[]), "/run/secrets/db /db /etc/a /data /b");
    assert_eq!(left(&["--secret-rm=db"]), "/etc/a /data /b");
    assert_eq!(left(&["--secret-rm=/db", "--config-rm=a"]), "/run/secrets/db /data /b");
    assert_eq!(left(&["--volume-rm=data"]), "/run/secrets/db /db /etc/a /b");
    // A bind mount is no volume; it is taken away by --mount-rm.
    assert_eq!(left(&["--volume-rm=/data/", "--volume-rm=/b"]), "/run/secrets/db /db /etc/a /b");
    // Another one at the same place takes it.
    let spec = changed(&created(&before).unwrap(), &["--secret-add=other:/db,mode=0444"]).unwrap();
    assert_eq!(spec.task.secrets[1].source.as_str(), "other");
    let moved = changed(&spec, &["--volume-add=data:/b:ro", "--secret-rm=db", "--secret-add=db:/x"]).unwrap();
    assert!(matches!(&moved.task.mounts[1].source, MountSource::Volume { name, .. } if name == "data"));
    assert_eq!(
        moved.task.secrets.iter().map(SecretObjectMount::secret_target).collect::<Vec<_>>(),
        ["/db", "/x"]
    );
}
