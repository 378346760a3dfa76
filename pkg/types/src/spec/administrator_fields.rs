//! Which fields of services only administrators may set.

use super::{MountSource, Seccomp, ServiceSpec, TaskNetworkMode, TaskSpec};

impl ServiceSpec {
    /// The fields that are set and give power over nodes: only administrators may set them.
    pub fn administrator_fields(&self) -> Vec<&'static str> {
        let TaskSpec {
            image: _,
            pull: _,
            resolve_image: _,
            command: _,
            args: _,
            env: _,
            container_labels: _,
            workdir: _,
            user: _,
            groups: _,
            hostname: _,
            hosts: _,
            tty: _,
            stdin: _,
            init: _,
            stop_signal: _,
            drain_delay: _,
            stop_grace: _,
            post_start: _,
            pre_stop: _,
            limits: _,
            reservations: _,
            ulimits: _,
            sysctls: _,
            shm_size: _,
            oom_score_adj,
            privileged,
            cap_add,
            cap_drop: _,
            no_new_privileges: _,
            seccomp,
            devices,
            read_only: _,
            mounts,
            secrets: _,
            configs: _,
            health: _,
            restart: _,
            on_disconnect: _,
            logs: _,
            network,
            dns: _,
            allow_metadata,
        } = &self.task;
        let is_bind = |source: &MountSource| matches!(source, MountSource::Bind { .. });
        let found = [
            (*privileged, "task.privileged"),
            (!cap_add.is_empty(), "task.capAdd"),
            (!devices.is_empty(), "task.devices"),
            (*seccomp == Seccomp::Unconfined, "task.seccomp"),
            (*network == TaskNetworkMode::Host, "task.network (host)"),
            (mounts.iter().any(|mount| is_bind(&mount.source)), "task.mounts (a directory of the node)"),
            (oom_score_adj.is_some_and(|score| score < 0), "task.oomScoreAdj (below 0)"),
            (*allow_metadata, "task.allowMetadata"),
            (self.bootstrap, "bootstrap"),
        ];
        found.into_iter().filter(|(is_set, _)| *is_set).map(|(_, field)| field).collect()
    }
}
