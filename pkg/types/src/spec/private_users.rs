//! What a task cannot have beside a user namespace of its own.

use super::{Mount, TaskNetworkMode, TaskSpec};

impl TaskSpec {
    /// Why its container cannot have a user namespace of its own: `with privileged, which ...`.
    pub fn private_users_conflict(&self) -> Option<&'static str> {
        let found = [
            (self.privileged, "with privileged, which gives the rights of the node's root"),
            (
                self.network == TaskNetworkMode::Host,
                "with the network of the node, over which it has no rights",
            ),
            (!self.devices.is_empty(), "with devices, which belong to users of the node"),
            (
                self.mounts.iter().any(Mount::has_later_mounts),
                "with rslave or rshared, since later mounts would have the ids of the node",
            ),
        ];
        found.into_iter().find(|(is_set, _)| *is_set).map(|(_, reason)| reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{Device, DeviceAccess, MountSource, Propagation, UserNamespace};

    #[test]
    fn private_users_need_a_container_of_its_own() {
        use UserNamespace::{Host, Private};
        let changes: [fn(&mut TaskSpec); 5] = [
            |_| (),
            |task| task.privileged = true,
            |task| task.network = TaskNetworkMode::Host,
            |task| {
                let (source, target) = ("/dev/fuse".to_owned(), "/dev/fuse".to_owned());
                task.devices = vec![Device { source, target, access: DeviceAccess::FULL }];
            },
            |task| {
                let (path, propagation) = ("/srv".to_owned(), Propagation::Slave);
                let source = MountSource::Bind { path, propagation, recursive: true };
                task.mounts = vec![Mount { target: "/srv".into(), source, read_only: false }];
            },
        ];
        for (number, change) in changes.into_iter().enumerate() {
            let mut task = TaskSpec::new("web:1".parse().unwrap());
            change(&mut task);
            for (asked, is_refused) in [(None, false), (Some(Host), false), (Some(Private), number > 0)] {
                task.user_namespace = asked;
                let found: Vec<String> = task.validate().0.into_iter().map(|wrong| wrong.path).collect();
                let expected = vec!["userNamespace"; usize::from(is_refused)];
                assert_eq!(found, expected, "{number} {asked:?}");
            }
        }
    }
}
